"""What a version differs in from an older one: the deltas of all its files, in one file, a pack.

The trainer makes packs before it announces a version, from the files of both versions. A server
asks for the one of the version that it holds. There may be none, and a pack need not have every
file: what is missing is fetched as it is. A manifest does not name packs, and nobody seals them,
since what comes of each delta must have the digest that the sealed manifest has of the file.

A pack has deltas one behind the other, then its index, in their order, and at its end the length of
the index in four bytes.
"""

import os
import struct
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np

from rlboost_jax.messages import FileEntry, LeafEntry
from rlboost_jax.weights.delta_codec import DeltaError, make_delta

FOLDER: Final = ".deltas"  # in a version's folder; a pack has the number of the older version
_LENGTH: Final = struct.Struct("<I")


class PackedDelta(msgspec.Struct, frozen=True, array_like=True):
    """Entry of an index."""

    path: str  # of the file, as in its manifest
    size: Annotated[int, msgspec.Meta(ge=0, lt=2**53)]  # of the delta


_decode = msgspec.msgpack.Decoder(list[PackedDelta]).decode


def write_pack(
    place: Path, base: Path, *, leaves: Iterable[LeafEntry], files: Iterable[FileEntry], name: str
) -> None:
    """Write the differences of a version's files from those of an older version.

    Args:
        place: folder of the version.
        base: folder of the older one, which may have other leaves, or be gone in part.
        name: of the pack.

    Raises:
        OSError: the disk does not take it.
    """
    widths = {leaf.name: np.dtype(leaf.dtype).itemsize for leaf in leaves}

    def delta_of(entry: FileEntry) -> bytes:
        width = widths[entry.path.rpartition("/")[0]]
        try:
            before = np.fromfile(base / entry.path, f"u{width}")
        except OSError:
            return b""
        after = np.fromfile(place / entry.path, f"u{width}")
        same_size = len(before) * width == len(after) * width == entry.size
        return make_delta(before, after) or b"" if same_size else b""

    arrays = [entry for entry in files if not entry.path.endswith("/.zarray")]
    (place / FOLDER).mkdir(exist_ok=True)
    index = []
    with (
        (place / FOLDER / name).open("wb") as file,
        ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="deltas") as threads,
    ):
        for entry, delta in zip(arrays, threads.map(delta_of, arrays), strict=True):
            if delta:
                file.write(delta)
                index.append(PackedDelta(entry.path, len(delta)))
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
