"""A disk that fills up under a run, by bytes or by files: the same command goes on once there is
room, to the same bits."""

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.harness import PATIENT, SHORT, Run, prepared

pytestmark = [
    pytest.mark.system,
    pytest.mark.soak,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None,
        reason="mounts small file systems",
    ),
]

BALLAST = 2**16  # bytes of a file that takes room


@contextlib.contextmanager
def small_disk(place: Path, **limits: str) -> Iterator[Path]:
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


@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_full_disk_costs_time_only(short_and_calm: Run, tmp_path: Path, what: str) -> None:
    limits = {"size": "24m"} if what == "bytes" else {"size": "24m", "nr_inodes": "2000"}
    with (
        small_disk(tmp_path / "disk", **limits) as disk,
        prepared(disk / "run", *SHORT, *PATIENT) as run,
    ):
        run._logs = tmp_path / "logs"  # what a test reads is elsewhere
        run._pace = tmp_path / "pace"
        run.start()
        with run.at_a_standstill(version=2):
            ballast = fill(disk, BALLAST if what == "bytes" else 0)
        said = run.end()
        assert run.process is not None and run.process.returncode == 1, said[-4000:]
        # Libraries have more to say before: of writes that nobody waits for any more.
        last = run.process.errors.strip().splitlines()[-1]
        assert last.startswith("error: ") and "no space (or no inode) is left" in last, said[-4000:]
        shutil.rmtree(ballast)
        run.start().finish()
        assert run.digests() == short_and_calm.digests()
        run.assert_accounts_hold()
