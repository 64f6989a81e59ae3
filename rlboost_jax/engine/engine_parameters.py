"""The engine's copy of the parameters: flat, unstacked, on its devices, in one dtype.

Adapters are merged on the way there, a layer at a time: the engine runs a model without.
"""

import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from rlboost_jax.engine.joined import joined
from rlboost_jax.engine.weight_panels import with_panels
from rlboost_jax.models.adapters import merged_layer
from rlboost_jax.models.params import (
    Params,
    abstract_params,
    flatten_params,
    unflatten_params,
)
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.model_config import LAYERS, STACKED, ModelConfig

Put = Callable[[Any, Any], Array]  # a leaf, and its device or sharding

_ALIGNMENT: Final = 64  # bytes: XLA's kMinAlign
_LAYERS_AT_A_TIME: Final = max(1, min(4, os.cpu_count() or 1))  # cast and copied


@dataclass(frozen=True)
class PreparedLeaves:
    """Parameters of an engine on its device, not loaded yet."""

    leaves: tuple[Array, ...]


class EngineParameters:
    """Parameter leaves in the order of the programs, and their policy version."""

    def __init__(
        self,
        model: ModelConfig,
        places: Params,
        dtype: str,
        *,
        double_buffered: bool = True,
        join: bool = False,
        panels: bool = False,
    ) -> None:
        """Set up without loading any parameters.

        Args:
            model: whose whole tree, layers stacked and adapters included, is given to every `load`.
            places: device or sharding of each leaf, layers unstacked and without adapters.
            dtype: of the leaves on the device.
            double_buffered: whether a version stays until the next one is on the device, which
                then holds both for a moment, or is freed before.
            join: whether matrices that multiply the same rows become one, see `joined.py`.
            panels: whether matrices are packed, see `weight_panels.py`.
        """
        leaves = flatten_params(abstract_params(model))
        self._model, self._shapes = model, {name: leaf.shape for name, leaf in leaves.items()}
        self._places, self._dtype = places, jnp.dtype(dtype)
        self._double_buffered, self._join, self._panels = double_buffered, join, panels
        self.version: Version | None = None
        self.leaves: tuple[Array, ...] = ()

    def prepare(self, params: "Params | PreparedLeaves") -> "Params | PreparedLeaves":
        """Copy parameters to the device beside those that are loaded, where it has room for both.

        Programs may run meanwhile: call it in any thread, once at a time. Where there is no room,
        the parameters are returned as they are.

        Raises:
            ValueError: see `load`.
        """
        if isinstance(params, PreparedLeaves):
            return params
        self._check(params)
        return PreparedLeaves(self._copied(params)) if self._double_buffered else params

    def arriving(self, shapes: Mapping[str, tuple[int, ...]]) -> "ArrivingParameters | None":
        """Begin to copy parameters as they come; None where the device has no room for both.

        Args:
            shapes: of all leaves to come, by dotted name.

        Raises:
            ValueError: see `load`.
        """
        self._check_shapes(shapes)
        return self._arriving() if self._double_buffered else None

    def load(self, params: "Params | PreparedLeaves", version: Version) -> None:
        """Take parameters, which are copied to the device unless they have been prepared.

        Never aliases them: a learner donates its own. Should the device fail to take them, the old
        ones stay if double-buffered; otherwise nothing is loaded any more and `version` is None.

        Raises:
            ValueError: a leaf is missing, unknown or of another shape; the old ones stay.
        """
        if isinstance(params, PreparedLeaves):
            self.leaves, self.version = params.leaves, version
            return
        self._check(params)
        if not self._double_buffered:
            self._free()
        self.leaves = self._copied(params)
        self.version = version

    def _check(self, params: Params) -> None:
        self._check_shapes({name: leaf.shape for name, leaf in flatten_params(params).items()})

    def _check_shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        for name in self._shapes.keys() ^ shapes.keys():
            what = "unknown" if name in shapes else "missing"
            raise ValueError(f"parameter {name} is {what}; the snapshot is of another model")
        for name, shape in self._shapes.items():
            if tuple(shapes[name]) != shape:
                raise ValueError(
                    f"parameter {name} has shape {shapes[name]} and the model {shape}; "
                    "the snapshot is of another model"
                )

    def _copied(self, params: Params) -> tuple[Array, ...]:
        """The leaves on the device, all of them there when this returns."""
        on_devices = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(params))
        if not on_devices:  # leaves on disk stay there until a layer of theirs is wanted
            params = jax.tree.map(
                lambda leaf: jax.device_get(leaf) if isinstance(leaf, jax.Array) else leaf, params
            )
        put = self._put_from_devices if on_devices else self._put
        return put(params)

    def _free(self) -> None:
        """Free the device memory now, even if other references to the arrays exist."""
        leaves, self.leaves, self.version = self.leaves, (), None
        for leaf in leaves:
            leaf.delete()

    def leaves_or_zeros(self) -> tuple[Array, ...]:
        """The loaded leaves; if none are, zeros of the same shapes that all layers share."""
        zeros = self._fill(lambda _, shape: np.zeros(shape, np.float32))
        return self.leaves or self._put(zeros, equal_layers=True)

    def leaves_or_random(self) -> tuple[Array, ...]:
        """The loaded leaves; if none are, a random model with lively activations."""
        random = np.random.default_rng(0)

        def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
            if name.endswith("scale"):
                return np.ones(shape, np.float32)
            size_in = 1 if name.endswith("bias") else shape[-2]
            return random.standard_normal(shape, np.float32) * size_in**-0.5

        return self.leaves or self._put(self._fill(fill))

    def _fill(self, make: Callable[[str, tuple[int, ...]], np.ndarray]) -> Params:
        return unflatten_params({name: make(name, shape) for name, shape in self._shapes.items()})

    def _put_from_devices(self, params: Params) -> tuple[Array, ...]:
        """Place one layer of a leaf at a time: cast where it lies, then move it."""

        def of_layer(leaf: Array, index: int, place: Any) -> Array:
            return jax.device_put(_layer(leaf, np.int32(index), self._dtype), place)

        def whole(leaf: Array, place: Any) -> Array:
            return jax.device_put(_cast(leaf, self._dtype), place)

        return self._assembled(params, of_layer, whole)

    def _put(self, params: Params, *, equal_layers: bool = False) -> tuple[Array, ...]:
        """Place host arrays."""

        def of_layer(leaf: np.ndarray, index: int, place: Any) -> Array:
            return self._put_from_host(leaf[index], place)

        return self._assembled(params, of_layer, self._put_from_host, equal_layers=equal_layers)

    def _put_from_host(self, leaf: np.ndarray, place: Any) -> Array:
        """Place a host array. On CPU of a copy: a device array may be a view of a host array."""
        on_cpu = _first_device(place).platform == "cpu"
        host = _aligned_copy(leaf, self._dtype) if on_cpu else np.asarray(leaf, self._dtype)
        return jax.device_put(host, place)

    def _assembled(
        self,
        params: Params,
        of_layer: Callable[[Any, int, Any], Array],
        whole: Put,
        *,
        equal_layers: bool = False,
    ) -> tuple[Array, ...]:
        """Assemble the leaves of a whole tree.

        Args:
            of_layer: a layer's part of a stacked leaf, in a place.
            whole: any other leaf, in a place.
            equal_layers: put the first layer in the places of all.
        """
        arriving, leaves = self._arriving(), flatten_params(params)

        def take(index: int) -> None:
            def put(leaf: Any, place: Any) -> Array:
                return of_layer(leaf, index, place)

            for name, leaf in leaves.items():
                if name.startswith(STACKED):
                    arriving.take(name, index, leaf, put)

        count = 1 if equal_layers else len(self._places[LAYERS])
        with ThreadPoolExecutor(_LAYERS_AT_A_TIME, thread_name_prefix="layers") as threads:
            list(threads.map(take, range(count)))
        for name, leaf in leaves.items():
            if not name.startswith(STACKED):
                arriving.take(name, None, leaf, whole)
        return arriving.prepared(equal_layers=equal_layers).leaves

    def _arriving(self) -> "ArrivingParameters":
        form = joined if self._join else _as_it_is
        num_leaves = sum(name.startswith(STACKED) for name in self._shapes)
        panels_dtype = self._model.dtype if self._panels else ""
        return ArrivingParameters(
            self._model,
            self._places,
            self._dtype,
            num_leaves,
            form,
            panels_dtype,
            self._put_from_host,
        )


class ArrivingParameters:
    """A version on its way to the device, a leaf of a layer or another leaf at a time.

    They may come in any order and in several threads. Adapters are merged on one device, as on a
    server with one.

    Args:
        places: device or sharding of each leaf, layers unstacked and without adapters.
        num_leaves: of a layer, adapters included.
        form: changes a layer on its device.
        panels_dtype: of products whose matrices are packed at the end; "": none are.
        put: places a leaf unless a call says otherwise.
    """

    def __init__(
        self,
        model: ModelConfig,
        places: Params,
        dtype: jnp.dtype,
        num_leaves: int,
        form: Callable[[Params], Params],
        panels_dtype: str,
        put: Put,
    ) -> None:
        self._model, self._dtype, self._layer_places = model, dtype, places[LAYERS]
        self._rest_places = flatten_params({**places, LAYERS: ()})
        self._num_leaves = num_leaves
        self._form, self._panels_dtype, self._put = form, panels_dtype, put
        self._parts: dict[int, dict[str, Array]] = {}  # of layers that are not complete, by name
        self._layers: dict[int, Params] = {}
        self._rest: dict[str, Array] = {}  # by name
        self._lock = threading.Lock()  # of parts
        self._first = threading.Lock()  # held by the first layer, so that it compiles alone

    def take(self, name: str, index: int | None, leaf: Any, put: Put | None = None) -> None:
        """Place a leaf; what it was given may be changed or freed once it returns.

        Args:
            name: dotted, as in a snapshot.
            index: of its layer; None: it belongs to none.
            leaf: a host array, or whatever `put` makes an array of.
        """
        put = put or self._put
        if index is None:
            self._rest[name] = jax.block_until_ready(put(leaf, self._rest_places[name]))
            return
        part, places = name.removeprefix(STACKED), self._layer_places[index]
        place = _first_device(places) if self._model.lora.rank else flatten_params(places)[part]
        array = jax.block_until_ready(put(leaf, place))
        with self._lock:
            parts = self._parts.setdefault(index, {})
            parts[part] = array
            if len(parts) < self._num_leaves:
                return
            del self._parts[index]
        with self._first:
            if not self._layers:
                self._layers[index] = self._formed(unflatten_params(parts), places)
                return
        self._layers[index] = self._formed(unflatten_params(parts), places)

    def prepared(self, *, equal_layers: bool = False) -> PreparedLeaves:
        """All leaves, once each has been placed.

        Args:
            equal_layers: the first layer, which is the only one that was placed, stands for all.
        """
        numbers = range(len(self._layer_places))
        layers = tuple(self._layers[0 if equal_layers else number] for number in numbers)
        tree = {**unflatten_params(self._rest), LAYERS: layers}
        tree = with_panels(tree, self._panels_dtype) if self._panels_dtype else tree
        return PreparedLeaves(jax.block_until_ready(tuple(jax.tree.leaves(tree))))

    def _formed(self, layer: Params, places: Params) -> Params:
        if self._model.lora.rank:
            merged = merged_layer(self._model, layer, self._dtype)
            layer = jax.tree.map(jax.device_put, merged, places)
        return jax.block_until_ready(self._form(layer))


def _aligned_copy(leaf: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A copy so aligned that XLA on CPU uses it as it is, where it would copy again."""
    num_bytes = leaf.size * dtype.itemsize
    room = np.empty(num_bytes + _ALIGNMENT, np.uint8)
    begin = -room.ctypes.data % _ALIGNMENT
    copy = room[begin : begin + num_bytes].view(dtype).reshape(leaf.shape)
    copy[...] = leaf
    return copy


def _as_it_is(layer: Params) -> Params:
    return layer


def _first_device(places: Any) -> jax.Device:
    """The first device of a place, or of a tree of them."""
    place = jax.tree.leaves(places)[0]
    return place if isinstance(place, jax.Device) else place.mesh.devices.flat[0]


@partial(jax.jit, static_argnums=1)
def _cast(leaf: Array, dtype: jnp.dtype) -> Array:
    """Copy a leaf in `dtype`, even where nothing has to be cast."""
    return jnp.copy(leaf).astype(dtype)


@partial(jax.jit, static_argnums=2)
def _layer(leaf: Array, index: Int[Array, ""], dtype: jnp.dtype) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False).astype(dtype)
