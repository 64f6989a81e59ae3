"""The version that a server pulled last, kept in the host's memory for deltas to be applied to.

What is made of it is hashed, also where a piece has not changed: an array that was written to since
is found out, and its pieces fetched as they are.
"""

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.delta_codec import DeltaError, apply_delta
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.leaf_cache import files_by_leaf


class DeltaBase:
    """The pieces of one version, lasting leaves aside; none at first.

    Attributes:
        version: whose pieces they were when it was complete. A pull that failed may have brought
            some of a later one.
        arrays: by name of the leaf, for the next version to be written over; none if somebody else
            has them.
        there: the piece that each place has, by path.
    """

    def __init__(self) -> None:
        self.version: Version | None = None
        self.arrays: Mapping[str, np.ndarray] = {}
        self.there: dict[str, FileEntry] = {}
        self._chunks: Mapping[str, np.ndarray] = {}

    def hold(
        self,
        version: Version,
        chunks: Mapping[str, np.ndarray],
        there: dict[str, FileEntry],
        arrays: Mapping[str, np.ndarray],
    ) -> None:
        """Keep the pieces of a version that was pulled, in place of any other's.

        Args:
            chunks: of arrays, by path of the piece.
            there: see the attribute, as `arrays`.
        """
        self.version, self._chunks = version, chunks
        self.there, self.arrays = there, arrays

    def room(self, pieces: PieceList) -> dict[str, np.ndarray]:
        """Arrays for a version to be written over: of leaves that have pieces of the same names.

        A leaf that is cut in another way has other bytes where a piece of the same name was.
        """
        paths: dict[str, set[str]] = {}
        for path in self._chunks:
            paths.setdefault(path.rpartition("/")[0], set()).add(path)
        files = files_by_leaf(pieces)
        return {
            name: array
            for name, array in self.arrays.items()
            if paths[name] == {entry.path for entry in files.get(name, ())}
        }

    def make(self, new: LeafBuffers, pack: Mapping[str, memoryview]) -> None:
        """Make pieces of a version of the held ones and a pack, in the order of its list. Blocks.

        All others have to be fetched.
        """

        def make(entry: FileEntry) -> None:
            old, chunk = self.there.get(entry.path), self._chunks.get(entry.path)
            if old is None or chunk is None or not (old == entry or entry.path in pack):
                return
            before = np.asarray(chunk, order="C")
            try:
                made = _made(before, None if old == entry else pack[entry.path], entry.sha256)
            except DeltaError:
                return
            if made is not chunk or not np.may_share_memory(made, new.chunks[entry.path]):
                new.put(entry, made)
            new.verified(entry)

        with ThreadPoolExecutor(os.cpu_count(), thread_name_prefix="deltas") as threads:
            list(threads.map(make, new.pieces.files))


def _made(old: np.ndarray, delta: memoryview | None, sha256: str) -> np.ndarray:
    """What becomes of a chunk: itself, without a delta. Raises DeltaError."""
    if delta is not None:
        return apply_delta(delta, old, sha256)
    if hashlib.sha256(old.reshape(-1).view(np.uint8).data).hexdigest() != sha256:
        raise DeltaError("a base that has changed")
    return old
