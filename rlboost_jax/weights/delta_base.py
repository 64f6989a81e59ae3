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
from rlboost_jax.weights.leaf_arrays import LeafBuffers, chunks_of
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

    def make(self, new: LeafBuffers, pack: Mapping[str, memoryview]) -> set[str]:
        """Make leaves of a version of the held ones and a pack, and return their names. Blocks.

        All others have to be fetched.
        """
        files = files_by_leaf(new.pieces)

        def made(leaf: LeafEntry) -> bool:
            return self._make(leaf, files.get(leaf.name, ()), new.arrays[leaf.name], pack)

        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="deltas") as threads:
            leaves = new.pieces.leaves
            found = zip(leaves, threads.map(made, leaves), strict=True)
            return {leaf.name for leaf, is_made in found if is_made}

    def _make(
        self,
        leaf: LeafEntry,
        files: tuple[FileEntry, ...],
        new: np.ndarray,
        pack: Mapping[str, memoryview],
    ) -> bool:
        old = self._arrays.get(leaf.name)
        if old is None or self._leaves.get(leaf.name) != leaf:
            return False
        before = {entry.path: entry for entry in self._files[leaf.name]}
        if before.keys() != {entry.path for entry in files}:
            return False
        same = {entry.path for entry in files if entry == before[entry.path]}
        if not all(entry.path in same or entry.path in pack for entry in files):
            return False
        places = chunks_of(leaf, files)
        if f"{leaf.name}/.zarray" not in same or places is None:
            return False  # cut in another way
        try:
            for entry, where in places:
                delta = None if entry.path in same else pack[entry.path]
                new[where] = _chunk(np.asarray(old[where], order="C"), delta, entry.sha256)
        except DeltaError:
            return False
        return True


def _chunk(old: np.ndarray, delta: memoryview | None, sha256: str) -> np.ndarray:
    """What becomes of a chunk: itself, without a delta. Raises DeltaError."""
    if delta is not None:
        return apply_delta(delta, old, sha256)
    if hashlib.sha256(old.reshape(-1).view(np.uint8).data).hexdigest() != sha256:
        raise DeltaError("a base that has changed")
    return old
