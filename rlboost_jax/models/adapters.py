"""A parameter tree in which only adapters are trained: its two parts, and how they are merged.

The leaves `lora_a` and `lora_b` are the adapters, beside the `kernel` that they belong to; all
others are the *base*. Where a model has no adapters everything is trained, and there is no base.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from rlboost_jax.models.lora import merged
from rlboost_jax.models.params import Params, flatten_params, unflatten_params
from rlboost_jax.settings.model import LoraConfig, ModelConfig

NAMES: Final = ("lora_a", "lora_b")


def base_model(model: ModelConfig) -> ModelConfig:
    """The same model without adapters."""
    return dataclasses.replace(model, lora=LoraConfig())


def is_adapter(name: str) -> bool:
    """Whether the leaf of that dotted name is one of an adapter's."""
    return name.endswith(NAMES)


def trained_part(model: ModelConfig, params: Params) -> Params:
    """Of a whole tree, arrays or not."""
    if not model.lora.rank:
        return params
    leaves = flatten_params(params)
    return unflatten_params({name: leaf for name, leaf in leaves.items() if is_adapter(name)})


def joined(base: Params | None, trained: Params) -> Params:
    """The whole tree; None is the base of a model without adapters."""
    if base is None:
        return trained
    return unflatten_params({**flatten_params(base), **flatten_params(trained)})


def merged_layer(model: ModelConfig, layer: Params, dtype: Any) -> Params:
    """A layer without adapters, of one with them. On the device of its arrays.

    The one program that engines and exports make merged matrices with, in the engine's order of
    sums.

    Args:
        dtype: of the merged matrices; they are rounded to `model.dtype` before.
    """
    return _merge(layer, lambda *factors: _merged(*factors, model.lora.scale, model.dtype, dtype))


def merged_params(model: ModelConfig, params: Params, dtype: Any) -> Params:
    """A whole tree without adapters, layers stacked, of one with them; merged ones on the host."""

    def merge(*factors: Any) -> np.ndarray:
        each = zip(*factors, strict=True)
        return np.stack(
            [_merged(*map(jnp.asarray, f), model.lora.scale, model.dtype, dtype) for f in each]
        )

    return _merge(params, merge)


def _merge(node: Params, merge: Callable[..., Any]) -> Params:
    """The tree with each kernel and its adapters replaced by one kernel, which `merge` makes.

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


@partial(jax.jit, static_argnums=(3, 4, 5))
def _merged(kernel: Array, a: Array, b: Array, scale: float, rounded_to: str, dtype: Any) -> Array:
    return merged(kernel, a, b, scale=scale, dtype=jnp.dtype(rounded_to), by_row=True).astype(dtype)
