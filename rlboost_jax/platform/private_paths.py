"""Folders whose names other users of the host know, too.

The first user to come may make `/tmp/run` or `/tmp/cache`; what lies there then is theirs: programs
to be run, keys, a FIFO that nobody writes to. So whose a place is is looked at before it is used.
What is ours is private by its folder.
"""

import contextlib
import os
from pathlib import Path
from typing import IO, Final

from rlboost_jax.platform.code_places import Replaceable, code_place, foreign
from rlboost_jax.platform.mistakes import ConfigError

# Advice on a workdir: without locks two trainers, or two managers, could work in one folder.
NO_LOCKS: Final = (
    "choose a --workdir on a file system with locks (NFS 4, or NFS 3 with its lock service)"
)


class NotOurs(ConfigError):
    """A folder belongs to another user, or is open to all of them."""


def own_folder(folder: Path, name: str) -> Path:
    """Return a folder of this user, made where there is none.

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


def code_folder(folder: Path, name: str) -> Path:
    """Return a folder for code; an objection of `code_places` is a user's mistake.

    Raises:
        NotOurs: another user could put code there, or above it.
        OSError: it cannot be made.
    """
    try:
        return code_place(folder, name)
    except Replaceable as error:
        raise NotOurs(str(error)) from None


def open_private(path: Path, mode: str) -> IO[str]:
    """Open a file for this user alone: who can open a file can lock it, and keep others waiting."""

    def opener(name: str, flags: int) -> int:
        descriptor = os.open(name, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with contextlib.suppress(OSError):  # of an earlier release, or on a file system without
            os.fchmod(descriptor, 0o600)
        return descriptor

    return open(path, mode, opener=opener)
