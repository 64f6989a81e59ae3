"""The version that a server pulled last, kept in the host's memory for deltas to be applied to.

What is made of it is hashed, also where a file has not changed: an array that was written to since
is found out, and its leaf fetched as it is.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from rlboost_jax.messages import FileEntry, LeafEntry, PieceList
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.delta_codec import DeltaError, apply_delta
from rlboost_jax.weights.leaf_arrays import chunks_of
from rlboost_jax.weights.leaf_cache import FilesByLeaf, files_by_leaf, leaf_of


class DeltaBase:
    """The leaves of one version, lasting ones aside; none at first."""

    def __init__(self) -> None:
        self._leaves: dict[str, LeafEntry] = {}  # by name
        self._files: FilesByLeaf = {}
        self.version: Version | None = None
        self._arrays: dict[str, np.ndarray] = {}  # by name of the leaf

    def hold(self, version: Version, pieces: PieceList, params: Mapping[str, Any]) -> None:
        """Keep the leaves of a version that was pulled, in place of any other's."""
        self._leaves = {leaf.name: leaf for leaf in pieces.leaves if not leaf.lasting}
        self._files, self.version = files_by_leaf(pieces), version
        self._arrays = {name: leaf_of(params, name) for name in self._leaves}

    def made(self, pieces: PieceList, pack: Mapping[str, memoryview]) -> dict[str, np.ndarray]:
        """Leaves of a version, by name, that come of the held ones and a pack. Blocks.

        All others have to be fetched.
        """
        files = files_by_leaf(pieces)

        def made(leaf: LeafEntry) -> np.ndarray | None:
            return self._made(leaf, files.get(leaf.name, ()), pack)

        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="deltas") as threads:
            arrays = threads.map(made, pieces.leaves)
            found = zip(pieces.leaves, arrays, strict=True)
            return {leaf.name: array for leaf, array in found if array is not None}

    def _made(
        self, leaf: LeafEntry, files: tuple[FileEntry, ...], pack: Mapping[str, memoryview]
    ) -> np.ndarray | None:
        old = self._arrays.get(leaf.name)
        if old is None or self._leaves.get(leaf.name) != leaf:
            return None
        before = {entry.path: entry for entry in self._files[leaf.name]}
        if before.keys() != {entry.path for entry in files}:
            return None
        same = {entry.path for entry in files if entry == before[entry.path]}
        if not all(entry.path in same or entry.path in pack for entry in files):
            return None
        places = chunks_of(leaf, files)
        if f"{leaf.name}/.zarray" not in same or places is None:
            return None  # cut in another way
        new = np.empty_like(old)
        try:
            for entry, where in places:
                delta = None if entry.path in same else pack[entry.path]
                new[where] = _chunk(np.asarray(old[where], order="C"), delta, entry.sha256)
        except DeltaError:
            return None
        return new


def _chunk(old: np.ndarray, delta: memoryview | None, sha256: str) -> np.ndarray:
    """What becomes of a chunk: itself, without a delta. Raises DeltaError."""
    if delta is not None:
        return apply_delta(delta, old, sha256)
    if hashlib.sha256(old.reshape(-1).view(np.uint8).data).hexdigest() != sha256:
        raise DeltaError("a base that has changed")
    return old
