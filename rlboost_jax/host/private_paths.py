"""Folders whose names other users of the host know, too.

The first user to come may make `/tmp/run` or `/tmp/cache`; what lies there then is theirs: programs
to be run, keys, a FIFO that nobody writes to. So whose a place is is looked at before it is used.
What is ours is private by its folder; what has to lie among that of others gets a name that is
drawn (`weights/spool.py`).
"""

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import IO, Final

from rlboost_jax.settings.errors import ConfigError

ROOT = 0  # may do everything anyway
# Of a workdir: without locks two trainers, or two managers, could work in one folder.
NO_LOCKS: Final = (
    "choose a --workdir on a file system with locks (NFS 4, or NFS 3 with its lock service)"
)


class NotOurs(ConfigError):
    """A folder belongs to another user, or is open to all of them."""


def own_folder(folder: Path, name: str) -> Path:
    """A folder of this user, made where there is none.

    Args:
        name: of what says which folder, for the error.

    Raises:
        NotOurs: another user could put into it, or has put into it, what is taken for ours.
        OSError: it cannot be made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if objection := foreign(folder):
        raise NotOurs(f"{name} {str(folder)!r} {objection}")
    return folder


def foreign(folder: Path) -> str:
    """Why what lies in a folder may be another user's; "" where it cannot be.

    Raises:
        OSError: there is no such folder.
    """
    for found in (folder.lstat(), folder.stat()):  # a link, and what it leads to
        if found.st_uid not in (os.geteuid(), ROOT) and found.st_uid != _uid_of_new_files(folder):
            return (
                f"belongs to user {found.st_uid}, who could put in it what is then taken for ours; "
                f"choose another, or a new folder in it"
            )
        if stat.S_ISDIR(found.st_mode) and _open_to_all(found.st_mode):
            return f"can be written by every user; chmod o-w {str(folder)!r}, or choose another"
    return ""


def open_private(path: Path, mode: str) -> IO[str]:
    """Open a file that is ours alone: who can open a file can lock it, and keep others waiting."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):  # of an earlier release, or on a file system without
            os.fchmod(descriptor, 0o600)
        return descriptor

    return open(path, mode, opener=opener)


def _open_to_all(mode: int) -> bool:
    """Whether anyone may replace what lies there; in a sticky folder each only what is theirs."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _uid_of_new_files(folder: Path) -> int:
    """Whose what we make there is: not always ours, on a file system of another host."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()
