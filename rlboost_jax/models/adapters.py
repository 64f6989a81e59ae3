"""A parameter tree in which only adapters are trained: its two parts, and how they are merged.

The leaves `lora_a` and `lora_b` are the adapters, beside the `kernel` that they belong to; all
others are the *base*. Where a model has no adapters everything is trained, and there is no base.
"""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rlboost_jax.models.compiler_options import same_bits
from rlboost_jax.models.lora import merged
from rlboost_jax.models.params import Params, flatten_params, unflatten_params
from rlboost_jax.settings.model_config import LoraConfig, ModelConfig

NAMES: Final = ("lora_a", "lora_b")


def base_model(model: ModelConfig) -> ModelConfig:
    """Configuration of the same model without adapters."""
    return dataclasses.replace(model, lora=LoraConfig())


def is_adapter(name: str) -> bool:
    """Whether the leaf of that dotted name is one of an adapter's."""
    return name.endswith(NAMES)


def trained_part(model: ModelConfig, params: Params) -> Params:
    """Trained leaves of a whole tree of arrays or anything else: the adapters, or all."""
    if not model.lora.rank:
        return params
    leaves = flatten_params(params)
    return unflatten_params({name: leaf for name, leaf in leaves.items() if is_adapter(name)})


def joined(base: Params | None, trained: Params) -> Params:
    """Join base and trained part to a whole tree; None is the base of a model without adapters."""
    if base is None:
        return trained
    return unflatten_params({**flatten_params(base), **flatten_params(trained)})


def merged_layer(model: ModelConfig, layer: Params, dtype: Any) -> Params:
    """Merge a layer's adapters into its matrices, on the device of its arrays.

    The one program that engines and exports make merged matrices with, in the engine's order of
    sums.

    Args:
        dtype: of the merged matrices; they are rounded to `model.dtype` before.
    """
    scale, dtypes = model.lora.scale, (model.dtype, dtype)
    return _merge(layer, lambda kernel, a, b: _merged(kernel, a, b, scale, *dtypes))


def merged_params(model: ModelConfig, params: Params, dtype: Any) -> Params:
    """Merge a whole tree's adapters, layers stacked; merged matrices are on the host."""

    def merge(*factors: Any) -> np.ndarray:
        scale, dtypes = model.lora.scale, (model.dtype, dtype)
        each = (map(jnp.asarray, f) for f in zip(*factors, strict=True))
        return np.stack([_merged(kernel, a, b, scale, *dtypes) for kernel, a, b in each])

    return _merge(params, merge)


def _merge(node: Params, merge: Callable[..., Any]) -> Params:
    """Replace each kernel and its adapters in the tree by one kernel, which `merge` makes.

    Args:
        merge: of kernel, `lora_a` and `lora_b`.
    """
    parts = {
        name: _merge(part, merge) if isinstance(part, dict) else part
        for name, part in node.items()
        if name not in NAMES
    }
    if "lora_a" in node:
        parts["kernel"] = merge(node["kernel"], *(node[name] for name in NAMES))
    return parts


def _merged(kernel: Array, a: Array, b: Array, scale: float, rounded_to: str, dtype: Any) -> Array:
    (device,) = kernel.devices()
    result: Array = _program(device)(kernel, a, b, scale, rounded_to, dtype)
    return result


@cache
def _program(device: jax.Device) -> Any:
    """Compiled merge, the same in every engine."""

    def merge(kernel: Array, a: Array, b: Array, scale: float, to: str, dtype: Any) -> Array:
        return merged(kernel, a, b, scale=scale, dtype=jnp.dtype(to), by_row=True).astype(dtype)

    return jax.jit(merge, static_argnums=(3, 4, 5), compiler_options=same_bits(device))
