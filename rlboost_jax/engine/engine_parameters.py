"""The engine's copy of the parameters: flat, unstacked, on its devices, in one dtype.

Adapters are merged on the way there, a layer at a time: the engine runs a model without.
"""

import os
from collections.abc import Callable
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
from rlboost_jax.settings.model_config import ModelConfig

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

    def prepare(self, params: Params) -> "Params | PreparedLeaves":
        """Copy parameters to the device beside those that are loaded, where it has room for both.

        Programs may run meanwhile: call it in any thread, once at a time. Where there is no room,
        the parameters are returned as they are.

        Raises:
            ValueError: see `load`.
        """
        self._check(params)
        return PreparedLeaves(self._copied(params)) if self._double_buffered else params

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
        leaves = flatten_params(params)
        for name in self._shapes.keys() ^ leaves.keys():
            what = "unknown" if name in leaves else "missing"
            raise ValueError(f"parameter {name} is {what}; the snapshot is of another model")
        for name, shape in self._shapes.items():
            if leaves[name].shape != shape:
                raise ValueError(
                    f"parameter {name} has shape {leaves[name].shape} and the model {shape}; "
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
        return jax.block_until_ready(put(params))

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
        """Place host arrays, copying first: on CPU a device array may be a view of a host array."""

        def whole(leaf: np.ndarray, place: Any) -> Array:
            return jax.device_put(np.array(leaf, self._dtype), place)

        def of_layer(leaf: np.ndarray, index: int, place: Any) -> Array:
            return whole(leaf[index], place)

        return self._assembled(params, of_layer, whole, equal_layers=equal_layers)

    def _assembled(
        self,
        params: Params,
        of_layer: Callable[[Any, int, Any], Array],
        whole: Callable[[Any, Any], Array],
        *,
        equal_layers: bool = False,
    ) -> tuple[Array, ...]:
        """Assemble the leaves, merging adapters on one device, as on a server with one.

        Args:
            of_layer: a layer's part of a stacked leaf, in a place.
            whole: any other leaf, in a place.
            equal_layers: put the first layer in the places of all.
        """

        def layer(index: int, places: Params) -> Params:
            if not self._model.lora.rank:
                return jax.tree.map(
                    lambda leaf, place: of_layer(leaf, index, place), params["layers"], places
                )
            one = _first_device(places)
            parts = jax.tree.map(lambda leaf: of_layer(leaf, index, one), params["layers"])
            return jax.tree.map(
                jax.device_put, merged_layer(self._model, parts, self._dtype), places
            )

        form = joined if self._join else _as_it_is
        all_places = self._places["layers"]
        distinct = all_places[:1] if equal_layers else all_places
        first = form(layer(0, distinct[0]))  # alone: its programs are compiled once
        with ThreadPoolExecutor(_LAYERS_AT_A_TIME, thread_name_prefix="layers") as threads:
            rest_of = threads.map(lambda i: form(layer(i, distinct[i])), range(1, len(distinct)))
            layers = (first, *rest_of)
        layers *= len(all_places) // len(layers)
        rest = {
            name: jax.tree.map(whole, part, self._places[name])
            for name, part in params.items()
            if name != "layers"
        }
        tree = {**rest, "layers": layers}
        tree = with_panels(tree, self._model.dtype) if self._panels else tree
        return tuple(jax.tree.leaves(tree))


def _as_it_is(layer: Params) -> Params:
    return layer


def _first_device(places: Params) -> jax.Device:
    place = jax.tree.leaves(places)[0]
    return place if isinstance(place, jax.Device) else place.mesh.devices.flat[0]


@partial(jax.jit, static_argnums=1)
def _cast(leaf: Array, dtype: jnp.dtype) -> Array:
    """Copy a leaf in `dtype`, even where nothing has to be cast."""
    return jnp.copy(leaf).astype(dtype)


@partial(jax.jit, static_argnums=2)
def _layer(leaf: Array, index: Int[Array, ""], dtype: jnp.dtype) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False).astype(dtype)
