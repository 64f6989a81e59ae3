"""Digests of what lies on disk: written with it, checked when it is read.

A folder that is written once has a `digests.json`: size and SHA-256 of each of its files. A small
JSON file has the digest of its other values among them. What a disk or a copy has changed since is
then a fault that names the file, and never something to go on with.

Nothing here needs JAX. Hashing takes a second for each gigabyte: call it off the critical path.
"""

import errno
import hashlib
import json
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NamedTuple

from rlboost_jax.platform import durable, foreign_json
from rlboost_jax.platform.durable import Damaged

FILE: Final = "digests.json"  # of a folder
SEAL: Final = "sha256"  # of a small file: the digest of all else in it
_BLOCK_BYTES: Final = 2**20
_SHOWN: Final = 3  # faults in a line
_THREADS: Final = 4  # hashing leaves the interpreter to others
_UNREADABLE: Final = {
    *durable.LOST,
    *(errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.EACCES),
}

Digests = dict[str, tuple[int, str]]  # size and SHA-256 by the name of a file below a folder


class Fault(NamedTuple):
    """A fault of a file: its path and what is wrong."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def one_line(faults: Collection[Fault]) -> str:
    """Join the first few faults into a line."""
    shown = "; ".join(map(str, list(faults)[:_SHOWN]))
    return shown + (f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else "")


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Add a digest of the values to them, last."""
    return {**values, SEAL: _digest_of(values)}


def unsealed(values: Mapping[str, Any], path: Path, remedy: str) -> dict[str, Any]:
    """Check and return the values of `sealed`.

    A file of an earlier release has no digest, and is taken as it is.

    Raises:
        Damaged: they are not those that the digest was made of.
    """
    values = dict(values)
    torn = any(_is_nearly_seal(name) for name in values)
    said = values.pop(SEAL, None)
    if torn or (said is not None and said != _digest_of(values)):
        raise Damaged(f"{path} is damaged (its digest is of something else); {remedy}")
    return values


def write_sealed(path: Path, values: Mapping[str, Any]) -> None:
    """Write a small JSON file with its digest, durably."""
    durable.write(path, (json.dumps(sealed(values), indent=2) + "\n").encode())


def read_sealed(path: Path, remedy: str) -> dict[str, Any] | None:
    """Read the values of a small JSON file; None where there is none.

    Args:
        remedy: what to do about a damaged one, for the error.

    Raises:
        Damaged: it is empty, torn, something else, or not what was written.
    """
    values = durable.read_object(path, remedy)
    return None if values is None else unsealed(values, path, remedy)


def _is_nearly_seal(name: str) -> bool:
    """Whether a name is the digest's with one letter changed, which no earlier release wrote."""
    pairs = zip(name, SEAL, strict=False)
    return len(name) == len(SEAL) and sum(one != other for one, other in pairs) == 1


def is_sealed(path: Path) -> bool:
    """Whether a small JSON file has a digest; raises Unreadable."""
    return SEAL in foreign_json.read(path, dict)


def _digest_of(values: Mapping[str, Any]) -> str:
    # As it will be read: tuples are lists then, and keys text.
    read = json.loads(json.dumps(values))  # noqa: TID251  (text of our own)
    text = json.dumps(read, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def files_below(folder: Path) -> list[str]:
    """List all files but `digests.json`, sorted, with slashes; links to folders count."""
    found = [
        os.path.relpath(os.path.join(place, name), folder)
        for place, folders, files in os.walk(folder)
        for name in (*files, *(n for n in folders if os.path.islink(os.path.join(place, n))))
    ]
    return sorted(name.replace(os.sep, "/") for name in found if name != FILE)


def digests_of(folder: Path, names: Iterable[str]) -> Digests:
    """Compute the digests of files below a folder, as they are now."""
    return {name: _digest_of_file(folder / name) for name in names}


def describe(folder: Path, others: Mapping[str, tuple[int, str]], **more: Any) -> bytes:
    """Return the contents of a folder's `digests.json`.

    Args:
        others: digests that are known already; all other files are read.
        more: values that go with them.
    """
    own = digests_of(folder, [name for name in files_below(folder) if name not in others])
    files = {name: list(each) for name, each in sorted({**others, **own}.items())}
    return (json.dumps(sealed({"files": files, **more})) + "\n").encode()


def described(folder: Path) -> dict[str, Any] | None:
    """Read a folder's `digests.json`; None where there is none.

    Raises:
        Damaged: of itself.
    """
    path, remedy = folder / FILE, "no digest of that folder can be trusted"
    try:
        values = durable.read_object(path, remedy)
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise Damaged(f"{path} cannot be read: {error.strerror}; {remedy}") from None
    if values is not None and not {SEAL, "files"} <= values.keys():
        raise Damaged(f"{path} is damaged (it lacks digests); {remedy}")
    if values is None:
        return None
    values = unsealed(values, path, remedy)
    files = values["files"]
    if not isinstance(files, dict) or not all(map(is_digest, files, files.values())):
        raise Damaged(f"{path} has other values than sizes and digests of files below; {remedy}")
    return values


def is_digest(name: str, value: Any) -> bool:
    """Whether a name and a value of JSON are those of a file below a folder."""
    below = not Path(name).is_absolute() and ".." not in Path(name).parts
    match value:
        case [int(), str()]:
            return below
    return False


def faults(
    folder: Path,
    digests: Mapping[str, tuple[int, str] | list[Any]],
    *,
    share: tuple[int, int] = (0, 1),
    from_disk: bool = False,
) -> Iterator[Fault]:
    """Check files below a folder against their digests and yield what is wrong.

    Args:
        digests: that they should have, by name.
        share: (i, n): this is one of n processes, and looks at every n-th file, the i-th first.
        from_disk: not from the memory that the system keeps of files, where that can be had.
    """
    index, count = share
    names = sorted(digests, key=lambda name: (-digests[name][0], name))[index::count]

    def looked_at(name: str) -> str:
        return _fault(folder / name, digests[name][0], digests[name][1], from_disk)

    with ThreadPoolExecutor(_THREADS, thread_name_prefix="digest") as threads:
        for name, fault in zip(names, threads.map(looked_at, names), strict=True):
            if fault:
                yield Fault(folder / name, fault)


def strangers(folder: Path, digests: Collection[str]) -> Iterator[Fault]:
    """Yield the files below a folder that it was not written with."""
    for name in files_below(folder):
        if name not in digests:
            yield Fault(folder / name, "it was not there when the folder was written")


def _fault(path: Path, size: int, sha256: str, from_disk: bool) -> str:
    """Describe what is wrong with a file; "": nothing."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            return "it is no file"  # opening a pipe would wait for its writer
        if found.st_size != size:
            return f"it has {found.st_size:,} bytes of {size:,}"
        same = _digest_of_file(path, from_disk=from_disk)[1] == sha256
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        return f"it cannot be read: {error.strerror}"
    return "" if same else f"its {size:,} bytes are not those that were written"


def _digest_of_file(path: Path, *, from_disk: bool = False) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        if from_disk and hasattr(os, "posix_fadvise"):  # what is not written yet stays
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size += len(block)
    return size, digest.hexdigest()
