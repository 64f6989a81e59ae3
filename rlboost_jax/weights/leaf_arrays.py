"""Arrays of a snapshot's folder: read into memory, or opened on disk."""

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from rlboost_jax.messages import PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.leaf_cache import put_leaf


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
