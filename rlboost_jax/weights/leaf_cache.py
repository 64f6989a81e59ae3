"""Leaves that every version has, kept in memory by a server that has fetched them once.

What is kept counts as the leaf of a version if its files are the same, digest by digest: a
trainer that comes back has written them anew, and with other parameters nothing matches.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlboost_jax.messages import FileEntry, LeafEntry, PieceList

FilesByLeaf = Mapping[str, tuple[FileEntry, ...]]


@dataclass(frozen=True)
class _Kept:
    leaf: LeafEntry
    files: tuple[FileEntry, ...]
    array: np.ndarray


class LeafCache:
    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}  # by name of the leaf

    def here(self, pieces: PieceList) -> dict[str, np.ndarray]:
        """Arrays of those leaves of a version that are kept, by name."""
        files = files_by_leaf(pieces)
        return {
            leaf.name: kept.array
            for leaf in pieces.leaves
            if (kept := self._kept.get(leaf.name)) is not None
            and (kept.leaf, kept.files) == (leaf, files.get(leaf.name, ()))
        }

    def missing(self, pieces: PieceList) -> PieceList:
        """The part of a version that is still to be fetched."""
        return without(pieces, self.here(pieces))

    def complete(self, params: dict[str, Any], pieces: PieceList) -> None:
        """Add the cached leaves to `params`, and keep this version's lasting leaves from now on.

        Args:
            params: nested, of the leaves that were missing.
        """
        files, kept = files_by_leaf(pieces), {}
        for name, array in self.here(pieces).items():
            put_leaf(params, name, array)
        for leaf in pieces.leaves:
            if leaf.lasting:
                array = leaf_of(params, leaf.name)
                kept[leaf.name] = _Kept(leaf, files.get(leaf.name, ()), array)
        self._kept = kept


def without(pieces: PieceList, names: Collection[str]) -> PieceList:
    """The list without these leaves and their files."""
    files = (entry for entry in pieces.files if entry.path.rpartition("/")[0] not in names)
    leaves = (leaf for leaf in pieces.leaves if leaf.name not in names)
    return PieceList(files=tuple(files), leaves=tuple(leaves))


def files_by_leaf(pieces: PieceList) -> FilesByLeaf:
    """The files of each leaf, by its name, in the list's order."""
    found: dict[str, list[FileEntry]] = {}
    for entry in pieces.files:
        found.setdefault(entry.path.rpartition("/")[0], []).append(entry)
    return {name: tuple(files) for name, files in found.items()}


def put_leaf(params: dict[str, Any], name: str, leaf: Any) -> None:
    """Set the leaf of a dotted name."""
    *folders, last = name.split(".")
    for folder in folders:
        params = params.setdefault(folder, {})
    params[last] = leaf


def leaf_of(params: Mapping[str, Any], name: str) -> np.ndarray:
    """The leaf of a dotted name."""
    *folders, last = name.split(".")
    for folder in folders:
        params = params[folder]
    leaf: np.ndarray = params[last]
    return leaf
