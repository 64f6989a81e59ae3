"""The engine's copy of the parameters: flat, unstacked, on one device, in one dtype."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rlboost_jax.models.params import Params, flatten_params, unflatten_params, unstack_layers


class EngineParameters:
    """Leaves in the order of the programs, and the policy version they are."""

    def __init__(
        self, abstract: Params, device: jax.Device, dtype: str, *, double_buffered: bool = True
    ) -> None:
        """Hold nothing yet.

        Args:
            abstract: tree of shapes, layers stacked, that every `load` must match.
            dtype: of the leaves on the device.
            double_buffered: whether a version stays until the next one is on the device, which
                then holds both for a moment, or is freed before.
        """
        self._shapes = {name: leaf.shape for name, leaf in flatten_params(abstract).items()}
        self._device, self._dtype = device, jnp.dtype(dtype)
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
        on_host = jax.device_get(params)
        if not self._double_buffered:
            self._free()
        self.leaves = jax.block_until_ready(self._put(on_host))
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

    def _put(self, params: Params) -> tuple[Array, ...]:
        """Copies first: on CPU a device array may be nothing but a view of a host array."""
        leaves = [np.array(leaf, self._dtype) for leaf in jax.tree.leaves(unstack_layers(params))]
        return tuple(jax.device_put(leaves, self._device))
