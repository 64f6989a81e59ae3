"""Files that are whole after a power cut: what is in place is what was written.

Until a file and the folder that names it have been forced to the device, a power cut may take
either: the name, or what is in the file while its name stays. So a file is written beside its
place, forced, renamed, and then its folder is forced. A crash at any instruction leaves the file
of before or the new one.

All of it can take long (20 ms and more a file on a disk, seconds on a full one), so nothing here
is called on the critical path of a step.
"""

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import Mistake

PART = ".part"  # ends the name of what is not in place yet
# What reading a file may end with where its bytes are lost: the device has none, or the file system
# finds them damaged. All else may pass, and says nothing about the file.
LOST: Final = frozenset(
    getattr(errno, name)
    for name in ("EIO", "EBADMSG", "EUCLEAN", "ENODATA")
    if hasattr(errno, name)
)
_NO_LINKS: Final = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK, errno.EXDEV)


class Damaged(Mistake, RuntimeError):
    """A file that a run needs is empty, torn or not what it should be."""


def write(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file durably; a reader sees the previous one or all of this.

    One writer at a time: what another has left half-written beside it is removed.

    Args:
        mode: of the file from its first byte on, less the umask.

    Raises:
        OSError: nothing was put in place, or (of the folder's sync) it may not last.
    """
    part = path.with_name(path.name + PART)
    part.unlink(missing_ok=True)  # whatever its mode was
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(part, flags, mode)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError:  # of a full disk, which what is half written would keep full
        part.unlink(missing_ok=True)
        raise
    replace(part, path)


def keep(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write a file durably, unless it already has these bytes."""
    with contextlib.suppress(OSError):
        if path.read_bytes() == data:
            return
    write(path, data, mode=mode)


def read_object(path: Path, remedy: str) -> dict[str, Any] | None:
    """Read a JSON object; None where there is no file.

    Args:
        remedy: what to do about a damaged one, for the error.

    Raises:
        Damaged: it is empty, torn or something else, or the device has lost it.
        OSError: it cannot be read now.
    """
    try:
        values: dict[str, Any] = foreign_json.read(path, dict)
    except FileNotFoundError:
        return None
    except OSError as error:
        if is_lost(error):
            raise Damaged(f"{path} cannot be read: {error.strerror}; {remedy}") from None
        raise
    except Unreadable as error:
        raise Damaged(f"{path} is damaged (it {error.reason}); {remedy}") from None
    return values


def is_lost(error: BaseException) -> bool:
    """Whether an error means that a file's bytes are gone for good."""
    return isinstance(error, OSError) and error.errno in LOST


def link(source: Path, target: Path, *, hard_link: Callable[[Path, Path], None] = os.link) -> None:
    """Give a file a second name, or copy it on a file system without hard links.

    Args:
        hard_link: gives it the second name.
    """
    try:
        hard_link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        shutil.copyfile(source, target)


def replace(part: Path, path: Path) -> None:
    """Rename a file or folder durably; its own bytes must be on the device already."""
    part.replace(path)
    sync_folder(path.parent)


def make_folder(folder: Path, *, mode: int = 0o777) -> None:
    """Make a folder and those above it durably, or make an existing one durable.

    One that lies in a folder which may not be read was made by others, and is theirs to keep.
    """
    if not folder.parent.exists():
        make_folder(folder.parent)
    folder.mkdir(mode=mode, exist_ok=True)
    with contextlib.suppress(PermissionError):
        sync_folder(folder.parent)


def sync(path: Path) -> None:
    """Force a file's bytes to the device, if it exists; its name is its folder's to sync."""
    with contextlib.suppress(FileNotFoundError):
        _sync(path)


def sync_folder(folder: Path) -> None:
    """Force the names in a folder to the device: what was made, renamed or removed there."""
    try:
        _sync(folder, os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # there is no sync of folders
            raise


def sync_tree(folder: Path, synced: Callable[[], None] = lambda: None) -> None:
    """Force all that is in a folder, and the folder's own name, to the device.

    Args:
        synced: called after each file.
    """
    for place, _, files in os.walk(folder, topdown=False):
        for name in files:
            if not os.path.islink(os.path.join(place, name)):
                _sync(Path(place, name))
                synced()
        sync_folder(Path(place))
    sync_folder(folder.parent)


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
