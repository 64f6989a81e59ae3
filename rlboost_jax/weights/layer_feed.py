"""A version handed on while it arrives: each layer, and each other leaf, once it is all there.

Who takes them puts them on a device. The host then holds pieces on their way and no version, unless
arrays are kept for deltas, for other servers or as lasting leaves.
"""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Protocol

import numpy as np

from rlboost_jax.messages import FileEntry
from rlboost_jax.settings.model_config import LAYERS
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.leaf_cache import put_leaf
from rlboost_jax.weights.returnable_arrays import give_back

_STACKED: Final = f"{LAYERS}."


class Receiver(Protocol):
    """Takes parts of a version, in any order and thread. What it is given may be freed after."""

    def layer(self, index: int, params: dict[str, Any]) -> None:
        """Take the leaves of one layer."""
        ...

    def leaf(self, name: str, leaf: Any) -> None:
        """Take a leaf that belongs to no layer."""
        ...

    def prepared(self) -> Any:
        """What has become of all of them."""
        ...


Begin = Callable[[Mapping[str, tuple[int, ...]]], Receiver | None]  # given the shapes of all leaves


class LayerFeed:
    """Hands parts of a version to a receiver as their last piece is verified.

    Args:
        leaves: those that arrive, which tell it of each piece.
        others: arrays of all other leaves, by name.
        gives_back: names of the leaves whose memory goes back once they were taken.
    """

    def __init__(
        self,
        leaves: LeafBuffers,
        others: Mapping[str, np.ndarray],
        receiver: Receiver,
        gives_back: Collection[str],
    ) -> None:
        self._receiver, self._gives_back = receiver, gives_back
        arrays = {**others, **leaves.arrays}
        self._whole = {name: leaf for name, leaf in arrays.items() if not name.startswith(_STACKED)}
        self._stacked = {name: leaf for name, leaf in arrays.items() if name not in self._whole}
        self._places = leaves.places
        self._lock, self._lacking = threading.Lock(), Counter[str | int]()
        for path in leaves.places:
            self._lacking.update(self._units(path))
        leaves.tell = self._verified

    def begin(self) -> None:
        """Hand on what is there from the start. Blocks."""
        num_layers = max((len(leaf) for leaf in self._stacked.values()), default=0)
        for unit in (*self._whole, *range(num_layers)):
            if not self._lacking[unit]:
                self._hand_on(unit)

    def _units(self, path: str) -> list[str | int]:
        """The leaf or the layers that a piece belongs to."""
        name, where = path.rpartition("/")[0], self._places[path]
        if name in self._whole:
            return [name]
        rows = where[0] if where else slice(None)
        return [*range(*rows.indices(len(self._stacked[name])))]

    def _verified(self, entry: FileEntry) -> None:
        """Hand on what has no other piece to wait for. Blocks."""
        if entry.path not in self._places:
            return
        with self._lock:
            units = self._units(entry.path)
            self._lacking.subtract(units)
            complete = [unit for unit in units if not self._lacking[unit]]
        for unit in complete:
            self._hand_on(unit)

    def _hand_on(self, unit: str | int) -> None:
        if isinstance(unit, str):
            self._receiver.leaf(unit, self._whole[unit])
            parts = {unit: self._whole[unit]}
        else:
            parts = {name: leaf[unit] for name, leaf in self._stacked.items()}
            layer: dict[str, Any] = {}
            for name, part in parts.items():
                put_leaf(layer, name.removeprefix(_STACKED), part)
            self._receiver.layer(unit, layer)
        for name, part in parts.items():
            if name in self._gives_back:
                give_back(part)
