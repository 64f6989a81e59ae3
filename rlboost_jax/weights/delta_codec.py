"""Exact differences between two versions of a piece of weights.

A small learning rate leaves most weights of a 16-bit version as they were, and moves the others to
a neighbouring number. A delta has the positions of the changed entries, and by how much each has
changed: the difference of the integers that its bits spell, modulo 2 to the number of bits. NaN,
infinities and signed zeros are integers like all others, so every bit comes out as it was put in.

    header  "RLD1", bytes of an entry, byte planes of the gaps; entries, changed entries
    sizes   of the planes that follow, as compressed
    planes  the lowest bytes of all gaps, the next ones, …; then the same of the differences

A gap is the number of unchanged entries before a changed one. Differences are in zigzag order (0,
-1, 1, -2, …), so that small ones have zeros in all but their lowest byte. Each plane is a frame of
zstd. Numbers are little-endian.

Deltas come from the network. `apply_delta` trusts no number in one: it checks each before it takes
memory for it (at most some twenty bytes for each entry of the base, besides the result), and
returns a new array with the digest that its caller knows, or nothing.
"""

import hashlib
import struct
from typing import Final

import numpy as np
import zstandard

from rlboost_jax.trust.snapshot_names import WeightsError

MOST_ENTRIES: Final = 2**30  # of a piece; a sum of gaps then stays within 63 bits
LEVEL: Final = 1  # of zstd: 3 saves 1 % and takes three times as long
MOST_GAP_PLANES: Final = 4

_MAGIC: Final = b"RLD1"
_HEADER: Final = struct.Struct("<4sBBQQ")
_BLOCK_BYTES: Final = 2**18  # compared at a time: stays in the cache of a core


class DeltaError(WeightsError):
    """A delta that is damaged, or of another base; the whole piece is to be fetched instead."""


def make_delta(base: np.ndarray, new: np.ndarray) -> bytes | None:
    """The difference that turns `base` into `new`; None: `new` as it is takes no more bytes.

    Args:
        base: contiguous, of a dtype whose entries have 1, 2, 4 or 8 bytes.
        new: of the same shape and dtype.
    """
    if (base.shape, base.dtype) != (new.shape, new.dtype):
        raise ValueError(f"{new.dtype}{new.shape} against a base of {base.dtype}{base.shape}")
    before, after = _integers(base), _integers(new)
    positions, differences = _changes(before, after)
    gaps = (np.diff(positions, prepend=-1) - 1).astype(np.uint32)
    num_gap_planes = (int(gaps.max(initial=0)).bit_length() + 7) // 8
    planes: list[bytes] = []
    if len(positions):
        compress = zstandard.ZstdCompressor(level=LEVEL).compress
        numbers = [*_planes(gaps, num_gap_planes), *_planes(_zigzag(differences), new.itemsize)]
        planes = [compress(plane.data) for plane in numbers]
    header = _HEADER.pack(_MAGIC, new.itemsize, num_gap_planes, len(before), len(positions))
    sizes = np.array([len(plane) for plane in planes], "<u4").tobytes()
    delta = b"".join([header, sizes, *planes])
    return delta if len(delta) < new.nbytes else None


def apply_delta(delta: bytes | memoryview, base: np.ndarray, sha256: str) -> np.ndarray:
    """The array that the delta was made for; `base` stays as it is.

    Args:
        sha256: of the array's bytes, in hexadecimal digits, from whom the caller believes.

    Raises:
        DeltaError: the result is not that array, whatever the reason.
    """
    new = _applied(memoryview(delta), base)
    if hashlib.sha256(new.data).hexdigest() != sha256:
        raise DeltaError("a delta of other weights, or for another base")
    return new.view(base.dtype).reshape(base.shape)


def _applied(delta: memoryview, base: np.ndarray) -> np.ndarray:
    """The result as integers, not verified. Raises DeltaError for what no encoder makes."""
    numbers = _integers(base)
    if len(delta) < _HEADER.size:
        raise DeltaError(f"a delta of {len(delta)} bytes")
    magic, itemsize, num_gap_planes, entries, changed = _HEADER.unpack_from(delta)
    if (magic, itemsize, entries) != (_MAGIC, base.itemsize, len(numbers)):
        raise DeltaError(f"a delta of {entries} entries of {itemsize} bytes, or none at all")
    if num_gap_planes > MOST_GAP_PLANES or changed > entries:
        raise DeltaError(f"a delta with {changed} of {entries} entries changed")
    num_planes = num_gap_planes + itemsize if changed else 0
    begin = _HEADER.size + 4 * num_planes
    if len(delta) < begin:
        raise DeltaError("a delta that ends in its header")
    sizes = np.frombuffer(delta[_HEADER.size : begin], "<u4").tolist()
    if len(delta) != begin + sum(sizes):
        raise DeltaError(f"a delta of {len(delta)} bytes, not {begin + sum(sizes)}")
    planes = []
    for size in sizes:
        planes.append(_plane(delta[begin : begin + size], changed))
        begin += size
    new = numbers.copy()
    if not changed:
        return new
    positions = _joined(planes[:num_gap_planes], changed, np.dtype(np.int64))
    positions += 1
    np.cumsum(positions, out=positions)
    positions -= 1
    if positions[-1] >= entries:
        raise DeltaError(f"a delta with a change at {positions[-1]} of {entries} entries")
    new[positions] += _unzigzag(_joined(planes[num_gap_planes:], changed, numbers.dtype))
    return new


def _integers(array: np.ndarray) -> np.ndarray:
    """The same memory as a list of unsigned integers."""
    if array.size > MOST_ENTRIES or not array.flags.c_contiguous:
        raise ValueError(f"no piece of weights: {array.size} entries, or not contiguous")
    return array.reshape(-1).view(f"u{array.itemsize}")


def _changes(before: np.ndarray, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the entries that differ, and how far."""
    length = _BLOCK_BYTES // before.itemsize
    differs, positions = np.empty(length, np.bool_), [np.empty(0, np.intp)]
    differences = [before[:0]]
    for begin in range(0, len(before), length):
        one, other = before[begin : begin + length], after[begin : begin + length]
        found = np.flatnonzero(np.not_equal(one, other, out=differs[: len(one)]))
        differences.append(other[found] - one[found])
        found += begin
        positions.append(found)
    return np.concatenate(positions), np.concatenate(differences)


def _zigzag(differences: np.ndarray) -> np.ndarray:
    signed = differences.view(f"i{differences.itemsize}")
    return ((signed << 1) ^ (signed >> (8 * signed.itemsize - 1))).view(differences.dtype)


def _unzigzag(numbers: np.ndarray) -> np.ndarray:
    return (numbers >> 1) ^ -(numbers & 1)


def _planes(numbers: np.ndarray, count: int) -> list[np.ndarray]:
    """The lowest `count` bytes of all numbers, byte by byte."""
    width = numbers.itemsize
    octets = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False).view(np.uint8)
    return [np.ascontiguousarray(octets[place::width]) for place in range(count)]


def _joined(planes: list[np.ndarray], count: int, dtype: np.dtype) -> np.ndarray:
    """So many numbers, whose lowest bytes these are; all others are zero."""
    numbers = np.zeros(count, dtype)
    for place, plane in enumerate(planes):
        numbers |= plane.astype(dtype) << (8 * place)
    return numbers


def _plane(frame: memoryview, size: int) -> np.ndarray:
    """Decompress a plane of so many bytes. Raises DeltaError rather than take more memory."""
    try:
        if zstandard.frame_content_size(frame) != size:
            raise DeltaError(f"a plane that is not of {size} bytes")
        data = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise DeltaError(f"a damaged plane: {error}") from None
    return np.frombuffer(data, np.uint8)
