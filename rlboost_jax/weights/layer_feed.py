"""A version handed on while it arrives: each layer's part of a leaf once it is all there.

Who takes them puts them on a device. The host then holds pieces on their way and no version, unless
arrays are kept for deltas, for other servers or as lasting leaves.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rlboost_jax.messages import FileEntry
from rlboost_jax.settings.model_config import STACKED
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.returnable_arrays import give_back

Unit = tuple[str, int | None]  # name of a leaf, and a layer; None: the leaf belongs to none


class LeafTaker(Protocol):
    """Takes the leaves of a version, in any order and thread."""

    def take(self, name: str, index: int | None, leaf: Any) -> None:
        """Take a leaf, or what a leaf has of a layer; it may be freed once this returns."""
        ...

    def prepared(self) -> Any:
        """What has become of all of them."""
        ...


Begin = Callable[
    [Mapping[str, tuple[int, ...]]], LeafTaker | None
]  # given the shapes of all leaves


class LayerFeed:
    """Hands parts of a version to a receiver as their last piece is verified.

    What is there from the start of a layer follows what arrives of it: a device need not hold all
    of a model's base beside its adapters.

    Args:
        leaves: those that arrive, which tell it of each piece.
        others: arrays of all other leaves, by name.
        gives_back: names of the leaves whose memory goes back once they were taken.
    """

    def __init__(
        self,
        leaves: LeafBuffers,
        others: Mapping[str, np.ndarray],
        receiver: LeafTaker,
        gives_back: Collection[str],
    ) -> None:
        self._arrays, self._others = leaves.arrays, others
        self._places, self._gives_back = leaves.places, gives_back
        self._receiver: LeafTaker | None = receiver
        self._lock = threading.Lock()
        self._lacking = Counter[Unit]()  # pieces
        for path in leaves.places:
            self._lacking.update(self._units(path))
        self._arriving = Counter(index for _, index in self._lacking)  # units of each layer
        leaves.tell = self._verified

    def begin(self) -> None:
        """Hand on what waits for nothing. Blocks."""
        found = {index for name, leaf in self._others.items() for index in _indices(name, leaf)}
        for index in sorted(found, key=lambda index: -1 if index is None else index):
            if index is None or index not in self._arriving:
                self._hand_on_others(index)

    def prepared(self) -> Any:
        """What the receiver has made of the version, once all of it has come. Blocks."""
        assert self._receiver is not None
        return self._receiver.prepared()

    def close(self) -> None:
        """Forget the receiver, so that what it has on a device goes with its last user.

        Who keeps the leaves, or the error of a broken pull, would keep it, too.
        """
        self._receiver = None

    def _units(self, path: str) -> list[Unit]:
        """The parts that a piece belongs to."""
        name, where = path.rpartition("/")[0], self._places[path]
        indices = _indices(name, self._arrays[name])
        if name.startswith(STACKED):
            indices = indices[where[0]]
        return [(name, index) for index in indices]

    def _verified(self, entry: FileEntry) -> None:
        """Hand on what has no other piece to wait for. Blocks."""
        if entry.path not in self._places:
            return
        with self._lock:
            units = self._units(entry.path)
            self._lacking.subtract(units)
            complete = [unit for unit in units if not self._lacking[unit]]
        for name, index in complete:
            part = self._arrays[name] if index is None else self._arrays[name][index, ...]
            self._take(name, index, part)
            if name in self._gives_back:
                give_back(part)
            with self._lock:
                self._arriving[index] -= 1
                last = not self._arriving[index]
            if last and index is not None:
                self._hand_on_others(index)

    def _hand_on_others(self, index: int | None) -> None:
        for name, leaf in self._others.items():
            if index in _indices(name, leaf):
                self._take(name, index, leaf if index is None else leaf[index, ...])

    def _take(self, name: str, index: int | None, leaf: np.ndarray) -> None:
        if (receiver := self._receiver) is not None:
            receiver.take(name, index, leaf)


def _indices(name: str, leaf: np.ndarray) -> Sequence[int | None]:
    return range(len(leaf)) if name.startswith(STACKED) else (None,)
