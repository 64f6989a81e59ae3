"""The engine's copy of the parameters: flat, unstacked, on one device, in one dtype."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rlboost_jax.models.params import Params, flatten_params, unflatten_params, unstack_layers


class EngineParameters:
    """Leaves in the order of the programs, and the policy version they are."""

    def __init__(self, abstract: Params, device: jax.Device, dtype: str) -> None:
        """Hold nothing yet.

        Args:
            abstract: tree of shapes, layers stacked, that every `load` must match.
            dtype: of the leaves on the device.
        """
        self._shapes = {name: leaf.shape for name, leaf in flatten_params(abstract).items()}
        self._device, self._dtype = device, jnp.dtype(dtype)
        self.version: int | None = None
        self.leaves: tuple[Array, ...] = ()

    def load(self, params: Params, version: int) -> None:
        """Copy parameters to the device. Never aliases them: a learner donates its own.

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
        self.leaves = self._put(jax.device_get(params))
        self.version = version

    def leaves_or_zeros(self) -> tuple[Array, ...]:
        """What is loaded; if nothing is, zeros of the same kind."""
        return self.leaves or self._put(self._fill(lambda _, shape: np.zeros(shape, np.float32)))

    def leaves_or_random(self) -> tuple[Array, ...]:
        """What is loaded; if nothing is, a model with lively activations."""
        random = np.random.default_rng(0)

        def fill(name: str, shape: tuple[int, ...]) -> np.ndarray:
            if name.endswith("scale"):
                return np.ones(shape, np.float32)
            return random.standard_normal(shape, np.float32) * shape[-2] ** -0.5

        return self.leaves or self._put(self._fill(fill))

    def _fill(self, make: Callable[[str, tuple[int, ...]], np.ndarray]) -> Params:
        return unflatten_params({name: make(name, shape) for name, shape in self._shapes.items()})

    def _put(self, params: Params) -> tuple[Array, ...]:
        """Copies first: on CPU a device array may be nothing but a view of a host array."""
        leaves = [np.array(leaf, self._dtype) for leaf in jax.tree.leaves(unstack_layers(params))]
        return tuple(jax.device_put(leaves, self._device))
