"""The engine's copy of the parameters: flat, unstacked, on its devices, in one dtype."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from rlboost_jax.models.params import Params, flatten_params, unflatten_params, unstack_layers


class EngineParameters:
    """Leaves in the order of the programs, and the policy version they are."""

    def __init__(
        self, abstract: Params, places: Params, dtype: str, *, double_buffered: bool = True
    ) -> None:
        """Hold nothing yet.

        Args:
            abstract: tree of shapes, layers stacked, that every `load` must match.
            places: device or sharding of each leaf, layers unstacked.
            dtype: of the leaves on the device.
            double_buffered: whether a version stays until the next one is on the device, which
                then holds both for a moment, or is freed before.
        """
        self._shapes = {name: leaf.shape for name, leaf in flatten_params(abstract).items()}
        self._places, self._dtype = places, jnp.dtype(dtype)
        self._double_buffered = double_buffered
        self.version: int | None = None
        self.leaves: tuple[Array, ...] = ()

    def load(self, params: Params, version: int) -> None:
        """Copy parameters to the device. Never aliases them: a learner donates its own.

        Should the device fail to take them, the old ones stay if double-buffered; otherwise
        nothing is loaded any more and `version` is None.

        Raises:
            ValueError: a leaf is missing, unknown or of another shape; the old ones stay.
        """
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
        on_devices = all(isinstance(leaf, jax.Array) for leaf in leaves.values())
        if not on_devices:
            params = jax.device_get(params)
        if not self._double_buffered:
            self._free()
        put = self._put_from_devices if on_devices else self._put
        self.leaves = jax.block_until_ready(put(params))
        self.version = version

    def _free(self) -> None:
        """Give the memory back now, whoever else may hold on to the arrays."""
        leaves, self.leaves, self.version = self.leaves, (), None
        for leaf in leaves:
            leaf.delete()

    def leaves_or_zeros(self) -> tuple[Array, ...]:
        """What is loaded; if nothing is, zeros of the same kind."""
        return self.leaves or self._put(self._fill(lambda _, shape: np.zeros(shape, np.float32)))

    def leaves_or_random(self) -> tuple[Array, ...]:
        """What is loaded; if nothing is, a model with lively activations."""
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
        """A layer of a leaf at a time: cast where it lies, then brought to its place."""

        def copied(leaf: Array, place: Any) -> Array:
            return jax.device_put(_cast(leaf, self._dtype), place)

        layers = tuple(
            jax.tree.map(
                lambda leaf, place, i=i: jax.device_put(
                    _layer(leaf, np.int32(i), self._dtype), place
                ),
                params["layers"],
                places,
            )
            for i, places in enumerate(self._places["layers"])
        )
        others = {
            name: jax.tree.map(copied, part, self._places[name])
            for name, part in params.items()
            if name != "layers"
        }
        return tuple(jax.tree.leaves({**others, "layers": layers}))

    def _put(self, params: Params) -> tuple[Array, ...]:
        """Copies first: on CPU a device array may be nothing but a view of a host array."""
        leaves = [np.array(leaf, self._dtype) for leaf in jax.tree.leaves(unstack_layers(params))]
        return tuple(jax.device_put(leaves, jax.tree.leaves(self._places)))


@partial(jax.jit, static_argnums=1)
def _cast(leaf: Array, dtype: jnp.dtype) -> Array:
    """A copy, even where nothing is to be cast."""
    return jnp.copy(leaf).astype(dtype)


@partial(jax.jit, static_argnums=2)
def _layer(leaf: Array, index: Int[Array, ""], dtype: jnp.dtype) -> Array:
    return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False).astype(dtype)
