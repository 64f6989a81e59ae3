"""Who else could change what lies at a path: owners and modes, of it and of the folders above.

Imports the standard library alone: `rlboost wheelhouse --script` puts this file into the script
that a host without the package runs. Rights that come from access control lists are not looked at.
"""

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = 0  # may do everything anyway


class Replaceable(Exception):
    """Another user could put code where code is to be run from."""


def foreign(folder: Path) -> str:
    """Say why a folder's contents may be another user's; "" where they cannot be.

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


def replaceable(path: Path) -> str:
    """Say why another user could change or replace the code at a path; "" if none can.

    The path itself, what a folder has in it, each folder above up to the root and each link on the
    way belong to this user or to root; nobody else may write the path, nor a folder above, unless
    it is sticky, as /tmp is.

    Raises:
        OSError: there is no such path.
    """
    return _objection(path.absolute(), _on_the_way(path.absolute()))


def code_place(path: Path, name: str) -> Path:
    """Return a folder for code, made for this user alone where there is none.

    Args:
        name: the setting or variable that names it, for the error.

    Raises:
        Replaceable: another user could put code there, or above it.
        OSError: it cannot be made.
    """
    path = path.absolute()
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    if missing:
        above = missing[-1].parent  # nothing is made in a folder of somebody else
        ways = ((place, found, True) for place, found, _ in _on_the_way(above, inside=False))
        _refuse(path, name, _objection(above, ways))
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # meanwhile; whose it is is looked at below
            folder.mkdir(mode=0o700)
    _refuse(path, name, replaceable(path))
    return path


def _refuse(path: Path, name: str, objection: str) -> None:
    if objection:
        raise Replaceable(f"{name} {str(path)!r}: {objection}; or set it to a folder of your own")


def _objection(path: Path, ways: Iterable[tuple[Path, os.stat_result, bool]]) -> str:
    ours = {os.geteuid(), ROOT, os.stat("/").st_uid, _uid_of_new_files(path)}
    for place, found, above in ways:
        mode = f"mode {stat.S_IMODE(found.st_mode):o}"
        if found.st_uid not in ours:
            return f"{place} belongs to user {found.st_uid} ({mode}), who could put code there"
        if stat.S_ISLNK(found.st_mode) or (above and found.st_mode & stat.S_ISVTX):
            continue
        if found.st_mode & stat.S_IWOTH:
            return f"{place} ({mode}) can be written by every user; chmod o-w {str(place)!r}"
        if found.st_mode & stat.S_IWGRP and not _is_private(found.st_gid, found.st_uid):
            group = f"{place} ({mode}) can be written by group {found.st_gid}"
            return f"{group}; chmod g-w {str(place)!r}"
    return ""


def _on_the_way(path: Path, *, inside: bool = True) -> Iterator[tuple[Path, os.stat_result, bool]]:
    """Yield the path, links and folders that lead to it (True: above it), and its contents."""
    resolved = path.resolve(strict=True)
    yield path, path.lstat(), False
    yield resolved, resolved.lstat(), False
    for above in dict.fromkeys((*path.parents, *resolved.parents)):
        yield above, above.lstat(), True
    if not inside or not resolved.is_dir():
        return
    with os.scandir(resolved) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):  # gone meanwhile
                yield Path(entry.path), entry.stat(follow_symlinks=False), False


def _open_to_all(mode: int) -> bool:
    """Whether anyone may replace files there; in a sticky folder users replace only their own."""
    return bool(mode & stat.S_IWOTH) and not mode & stat.S_ISVTX


def _is_private(group: int, user: int) -> bool:
    """Whether a group is root's, or has the user alone, as most systems give each user one."""
    import grp
    import pwd

    if group == ROOT:
        return True
    try:
        known, name = grp.getgrgid(group), pwd.getpwuid(user).pw_name
    except KeyError:
        return group == user
    return known.gr_name == name and set(known.gr_mem) <= {name}


def _uid_of_new_files(folder: Path) -> int:
    """Owner of new files in a folder: not always this user, on another host's file system."""
    if not folder.is_dir():
        return os.geteuid()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_uid
    except OSError:
        return os.geteuid()
