"""Arrays of a version: in memory as its pieces arrive, or on disk in its folder.

A piece is a chunk of a leaf's array, as it is in memory. Where its bytes follow each other there,
they arrive in their place.
"""

from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import tensorstore as ts

from rlboost_jax.messages import FileEntry, LeafEntry, PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.leaf_cache import files_by_leaf, put_leaf


class LeafBuffers:
    """An intake of a version's pieces, which become the arrays of its leaves.

    What belongs to no leaf is dropped, and so are the descriptions of arrays on disk: the list has
    shapes and dtypes.

    Raises:
        WeightsError: the pieces of a leaf are not the chunks of an array of its shape and dtype.
    """

    def __init__(self, pieces: PieceList) -> None:
        self._arrays: dict[str, np.ndarray] = {}
        self._chunks: dict[str, np.ndarray] = {}  # parts of arrays, by path
        self._apart: dict[str, np.ndarray] = {}  # chunks whose bytes do not follow each other
        files = files_by_leaf(pieces)
        for leaf in pieces.leaves:
            array = self._arrays[leaf.name] = _empty(leaf)
            chunks = chunks_of(leaf, files.get(leaf.name, ()))
            for entry, where in chunks or ():
                chunk = self._chunks[entry.path] = array[where] if where else array
                if chunk.nbytes != entry.size:
                    chunks = None
                    break
            if chunks is None:
                raise WeightsError(
                    f"leaf {leaf.name}: its pieces are not those of {leaf.dtype}{list(leaf.shape)}"
                )

    def room(self, entry: FileEntry) -> memoryview:
        chunk = self._chunks.get(entry.path)
        if chunk is None:
            return memoryview(bytearray(entry.size))
        if not chunk.flags.c_contiguous:
            chunk = self._apart[entry.path] = np.empty(chunk.shape, chunk.dtype)
        return chunk.reshape(-1).view(np.uint8).data

    def verified(self, entry: FileEntry) -> None:
        if (apart := self._apart.pop(entry.path, None)) is not None:
            self._chunks[entry.path][...] = apart

    def params(self) -> dict[str, Any]:
        """The arrays as a nested dict, once all pieces have been verified."""
        params: dict[str, Any] = {}
        for name, array in self._arrays.items():
            put_leaf(params, name, array)
        return params


def _empty(leaf: LeafEntry) -> np.ndarray:
    """Memory for a leaf; none is taken before bytes come."""
    try:
        dtype = np.dtype(leaf.dtype)
        if dtype.hasobject or not dtype.itemsize:
            raise TypeError
        return np.empty(leaf.shape, dtype)
    except (TypeError, ValueError, MemoryError):
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


def read_params(folder: Path, pieces: PieceList) -> dict[str, Any]:
    """The arrays of a fetched snapshot as a nested dict, read by tensorstore alone.

    Raises:
        WeightsError: if a leaf cannot be read or has not the shape and dtype of its list.
    """
    opened = _opened(folder, pieces)
    params: dict[str, Any] = {}
    try:
        reading = {name: array.read() for name, array in opened.items()}
        for name, array in reading.items():
            put_leaf(params, name, np.asarray(array.result()))
    except ValueError as error:  # tensorstore's word for everything
        raise WeightsError(f"leaf {name}: {str(error).splitlines()[0]}") from None
    return params


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
