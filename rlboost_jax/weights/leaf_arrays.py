"""Arrays of a version: in memory as its pieces arrive, or on disk in its folder.

A piece is a chunk of a leaf's array, as it is in memory. Where its bytes follow each other there,
they arrive in their place.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import tensorstore as ts

from rlboost_jax.messages import FileEntry, LeafEntry, PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.leaf_cache import files_by_leaf, put_leaf
from rlboost_jax.weights.returnable_arrays import returnable

Empty = Callable[[tuple[int, ...], np.dtype], np.ndarray]


class LeafBuffers:
    """An intake of a version's pieces, which become the arrays of its leaves.

    What belongs to no leaf is kept behind them, such as the descriptions of arrays on disk, which
    nobody reads: the list has shapes and dtypes.

    Args:
        pieces: those to bring, and their leaves.
        empty: makes an array.
        arrays: of an older version, by name of the leaf, which those of the same shape and dtype
            are written over.
        there: the piece that each place of `arrays` has, by path; kept up to date.

    Attributes:
        arrays: by name of the leaf.
        chunks: the part of an array that each piece is, by path.
        places: the indices of that part, of the pieces that belong to a leaf.
        others: paths of the pieces that belong to no leaf.
        complete: paths of the pieces that were verified.
        tell: called with each piece that was verified, in any thread.

    Raises:
        WeightsError: the pieces of a leaf are not the chunks of an array of its shape and dtype.
    """

    def __init__(
        self,
        pieces: PieceList,
        empty: Empty = returnable,
        *,
        arrays: Mapping[str, np.ndarray] = MappingProxyType({}),
        there: dict[str, FileEntry] | None = None,
    ) -> None:
        self.pieces, self._there = pieces, {} if there is None else there
        self.arrays: dict[str, np.ndarray] = {}
        self.chunks: dict[str, np.ndarray] = {}
        self.places: dict[str, tuple[slice, ...]] = {}
        self.complete: set[str] = set()
        self.tell: Callable[[FileEntry], None] = lambda entry: None
        self._apart: dict[str, np.ndarray] = {}  # chunks whose bytes do not follow each other
        files = files_by_leaf(pieces)
        for leaf in pieces.leaves:
            array = arrays.get(leaf.name)
            if array is None or (array.shape, array.dtype.name) != (leaf.shape, leaf.dtype):
                array = _made(leaf, empty)
            self.arrays[leaf.name] = array
            chunks = chunks_of(leaf, files.get(leaf.name, ()))
            for entry, where in chunks or ():
                chunk = self.chunks[entry.path] = array[where] if where else array
                self.places[entry.path] = where
                if chunk.nbytes != entry.size:
                    chunks = None
                    break
            if chunks is None:
                raise WeightsError(
                    f"leaf {leaf.name}: its pieces are not those of {leaf.dtype}{list(leaf.shape)}"
                )
        others = [entry for entry in pieces.files if entry.path not in self.chunks]
        self.others = frozenset(entry.path for entry in others)
        ends = list(itertools.accumulate(entry.size for entry in others))
        rest_shape = (ends[-1] if ends else 0,)
        rest = _made(LeafEntry(name="(none)", shape=rest_shape, dtype="uint8"), empty)
        for entry, end in zip(others, ends, strict=True):
            self.chunks[entry.path] = rest[end - entry.size : end]

    def in_place(self, entry: FileEntry) -> memoryview | None:
        """The memory that a piece belongs in; None if its bytes do not follow each other there."""
        chunk = self.chunks[entry.path]
        if not chunk.flags.c_contiguous:
            return None
        self._there.pop(entry.path, None)
        return chunk.reshape(-1).view(np.uint8).data

    def put(self, entry: FileEntry, data: memoryview | np.ndarray) -> None:
        """Copy a piece to where it belongs."""
        chunk = self.chunks[entry.path]
        self._there.pop(entry.path, None)
        chunk[...] = np.frombuffer(data, chunk.dtype).reshape(chunk.shape)

    def room(self, entry: FileEntry) -> memoryview:
        if (here := self.in_place(entry)) is not None:
            return here
        self._apart[entry.path] = apart = np.empty(entry.size, np.uint8)
        return apart.data

    def verified(self, entry: FileEntry) -> None:
        if (apart := self._apart.pop(entry.path, None)) is not None:
            self.put(entry, apart)
        self._there[entry.path] = entry
        self.complete.add(entry.path)
        self.tell(entry)

    def lacking(self, files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
        return tuple(entry for entry in files if entry.path not in self.complete)

    def params(self) -> dict[str, Any]:
        """The arrays as a nested dict, once all pieces have been verified."""
        params: dict[str, Any] = {}
        for name, array in self.arrays.items():
            put_leaf(params, name, array)
        return params


def _made(leaf: LeafEntry, empty: Empty) -> np.ndarray:
    """Memory for a leaf; none is taken before bytes come."""
    try:
        dtype = np.dtype(leaf.dtype)
        if dtype.hasobject or not dtype.itemsize:
            raise TypeError
        return empty(leaf.shape, dtype)
    except (TypeError, ValueError, MemoryError, OverflowError, OSError):
        raise WeightsError(f"leaf {leaf.name}: no array {leaf.dtype}{list(leaf.shape)}") from None


def chunks_of(
    leaf: LeafEntry, files: tuple[FileEntry, ...]
) -> list[tuple[FileEntry, tuple[slice, ...]]] | None:
    """The part of a leaf that each file has; None unless they are equal and all there."""
    arrays = [entry for entry in files if not entry.path.endswith("/.zarray")]
    names = [entry.path.rpartition("/")[2] for entry in arrays]
    if not leaf.shape:
        return [(entry, ()) for entry in arrays] if names == ["0"] else None
    try:
        places = [tuple(map(int, name.split("."))) for name in names]
    except ValueError:
        return None
    if not places or any(len(place) != len(leaf.shape) for place in places):
        return None
    grid = [1 + max(along) for along in zip(*places, strict=True)]
    if set(places) != set(np.ndindex(*grid)) or any(
        size % count for size, count in zip(leaf.shape, grid, strict=True)
    ):
        return None
    sizes = [size // count for size, count in zip(leaf.shape, grid, strict=True)]
    return [
        (entry, tuple(slice(i * n, (i + 1) * n) for i, n in zip(place, sizes, strict=True)))
        for entry, place in zip(arrays, places, strict=True)
    ]


def open_params(folder: Path, pieces: PieceList) -> dict[str, Any]:
    """Open the arrays without reading them: each leaf is an array on disk, and so are its slices.

    What is read later is not verified: for who has written it.
    """
    params: dict[str, Any] = {}
    for name, array in _opened(folder, pieces).items():
        put_leaf(params, name, array)
    return params


def _opened(folder: Path, pieces: PieceList) -> dict[str, ts.TensorStore]:
    """Open the array of each leaf, by its name."""
    context = ts.Context()
    opening = {
        leaf.name: ts.open(
            {
                "driver": "zarr",
                "kvstore": {"driver": "file", "path": f"{folder / leaf.name}/"},
                "fill_missing_data_reads": False,  # a missing piece is an error, not zeros
            },
            context=context,
            read=True,
            open=True,
        )
        for leaf in pieces.leaves
    }
    opened = {}
    for leaf in pieces.leaves:
        try:
            array = opened[leaf.name] = opening[leaf.name].result()
        except ValueError as error:  # tensorstore's word for everything
            raise WeightsError(f"leaf {leaf.name}: {str(error).splitlines()[0]}") from None
        found = (tuple(array.shape), array.dtype.name)
        if found != (leaf.shape, leaf.dtype):
            raise WeightsError(
                f"leaf {leaf.name}: {found[1]}{list(found[0])} on disk, its list says "
                f"{leaf.dtype}{list(leaf.shape)}"
            )
    return opened
