"""What a version differs in from an older one: the deltas of all its files, in one file, a pack.

The trainer makes packs once it has announced a version, from the files of both versions. Until a
pack is made there is an empty file in its place, and a server that finds it asks again a moment
later; a pack that is abandoned leaves no file. A server asks for the pack of the version that it
holds. There may be none, and a pack need not have every file: what is missing is fetched as it is.
A manifest does not name packs, and nobody seals them, since what comes of each delta must have the
digest that the sealed manifest has of the file.

A pack has deltas one behind the other, then its index, in their order, and at its end the length of
the index in four bytes.
"""

import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from rlboost_jax.messages import PieceList
from rlboost_jax.weights.delta_codec import DeltaError, make_delta

FOLDER: Final = ".deltas"  # in a version's folder; a pack has the number of the older version
PARTIAL: Final = ".partial"  # ends the name of a pack while it is written
_LENGTH: Final = struct.Struct("<I")


class PackedDelta(msgspec.Struct, frozen=True, array_like=True):
    """Entry of an index."""

    path: str  # of the file, as in its manifest
    size: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # of the delta


_decode = msgspec.msgpack.Decoder(list[PackedDelta]).decode


def promise_packs(place: Path, bases: Iterable[int]) -> None:
    """Put an empty file in the place of each pack that is to be made.

    Args:
        place: folder of the version.
        bases: numbers of the older versions.
    """
    for base in bases:
        (place / FOLDER).mkdir(exist_ok=True)
        (place / FOLDER / str(base)).touch()


def promised(place: Path) -> list[Path]:
    """Paths of the packs that a version's folder has or will have, the nearest version's first."""
    return sorted((place / FOLDER).glob("*[0-9]"), key=lambda path: int(path.name), reverse=True)


def write_pack(pack: Path, base: Path, pieces: PieceList, stop: Callable[[], bool]) -> None:
    """Write the differences of a version's files from those of an older version.

    Args:
        pack: its path in the folder of the version.
        base: folder of the older one, which may have other leaves, or be gone in part.
        pieces: of the version; lasting leaves never differ.
        stop: called for each file; once it is true, the pack is abandoned.

    Raises:
        OSError: the disk does not take it; it is abandoned.
    """
    place, partial = pack.parents[1], pack.with_name(pack.name + PARTIAL)
    widths = {x.name: np.dtype(x.dtype).itemsize for x in pieces.leaves if not x.lasting}
    files = [x.path for x in pieces.files if x.path.rpartition("/")[0] in widths]

    def delta_of(path: str) -> bytes:
        if stop():
            return b""
        width = widths[path.rpartition("/")[0]]
        try:
            before = np.fromfile(base / path, f"u{width}")
        except OSError:
            return b""
        after = np.fromfile(place / path, f"u{width}")
        return make_delta(before, after) or b"" if len(before) == len(after) else b""

    whole = False
    try:
        _write(partial, [path for path in files if not path.endswith("/.zarray")], delta_of)
        if not stop():
            partial.replace(pack)
            whole = True
    finally:
        if not whole:
            pack.unlink(missing_ok=True)
            partial.unlink(missing_ok=True)


def _write(path: Path, files: Sequence[str], delta_of: Callable[[str], bytes]) -> None:
    """Write a pack of the deltas of these files, made on all cores."""
    index = []
    with (
        path.open("wb") as file,
        ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="deltas") as threads,
    ):
        for name, delta in zip(files, threads.map(delta_of, files), strict=True):
            if delta:
                file.write(delta)
                index.append(PackedDelta(name, len(delta)))
        encoded = msgspec.msgpack.encode(index)
        file.write(encoded + _LENGTH.pack(len(encoded)))


def read_pack(data: bytes) -> Mapping[str, memoryview]:
    """Deltas of a pack by the paths of their files, not looked at yet.

    Raises:
        DeltaError: it is none.
    """
    view = memoryview(data)
    try:
        [length] = _LENGTH.unpack(view[-_LENGTH.size :])
        end = len(view) - _LENGTH.size - length
        index = _decode(view[max(0, end) : -_LENGTH.size])
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DeltaError(f"no pack of deltas: {error}") from None
    found, begin = {}, 0
    for entry in index:
        found[entry.path] = view[begin : begin + entry.size]
        begin += entry.size
    if begin != end:
        raise DeltaError(f"a pack with {end} bytes of deltas, not {begin}")
    return found
