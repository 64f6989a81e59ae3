"""File systems of a test's own: small ones, and one that fails."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType


def can_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextlib.contextmanager
def small_disk(place: Path, **limits: str) -> Iterator[Path]:
    """A file system in memory, of so many bytes (`size`) and files (`nr_inodes`)."""
    place.mkdir()
    options = ",".join(f"{name}={value}" for name, value in limits.items())
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def fill(place: Path, size: int) -> Path:
    """Take all the room there is, in files of that size."""
    ballast = place / "ballast"
    ballast.mkdir()
    with contextlib.suppress(OSError):
        for number in range(10**6):
            (ballast / str(number)).write_bytes(bytes(size))
    return ballast


class BrokenDisk:
    """An ext4 in a file, which becomes read-only where its device fails.

    A mount that is asked to become so refuses while files are open for writing; an error of the
    device asks nobody.
    """

    def __init__(self, folder: Path, *, megabytes: int) -> None:
        self._image, self.place = folder / "image", folder / "disk"
        self._megabytes = megabytes

    def __enter__(self) -> "BrokenDisk":
        self.place.mkdir()
        with open(self._image, "wb") as image:
            image.truncate(self._megabytes * 2**20)
        _run("mkfs.ext4", "-q", self._image)
        self._mount()
        self.place.chmod(0o700)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        subprocess.run(["umount", "--lazy", self.place], check=False)

    def fail(self) -> None:
        """An error that the file system finds."""
        loop = _run("losetup", "--noheadings", "--output=NAME", "--associated", self._image)
        (Path("/sys/fs/ext4") / Path(loop.strip()).name / "trigger_fs_error").write_text("test\n")

    def repair(self) -> None:
        """Repair a disk that nobody uses any more."""
        _run("umount", self.place)
        subprocess.run(["e2fsck", "-fy", self._image], check=False, capture_output=True)
        self._mount()

    def _mount(self) -> None:
        _run("mount", "-o", "loop,errors=remount-ro", self._image, self.place)


def _run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
