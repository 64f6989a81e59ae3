"""Matrices that multiply the same rows, side by side as one: queries, keys and values; gate and up.

One product reads the rows once and fills a GPU better. XLA for GPUs knows that and joins small
matrices itself, but at each use: a seventh of a decode step of Qwen3-0.6B on an H200. On a CPU each
column of a product has the bits that it had. Shares of matrices on several devices stay apart.
"""

from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rlboost_jax.models.decoder import GATE_UP, QUERY_KEY_VALUE
from rlboost_jax.models.params import Params

_PARTS: Final = {
    "attention": (QUERY_KEY_VALUE, ("query", "key", "value")),
    "mlp": (GATE_UP, ("gate", "up")),
}


def joined(layer: Params) -> Params:
    """The parameters of one layer, without adapters, with fewer and wider matrices.

    Experts of a mixture stay as they are.
    """
    result = dict(layer)
    for part, (name, names) in _PARTS.items():
        if names[0] not in layer[part]:
            continue  # experts and their router
        rest = {key: value for key, value in layer[part].items() if key not in names}
        wide = jax.tree.map(lambda *leaves: _beside(leaves), *(layer[part][key] for key in names))
        result[part] = {**rest, name: wide}
    return result


@jax.jit
def _beside(leaves: Sequence[Array]) -> Array:
    """Concatenate the columns of matrices, or of their biases."""
    return jnp.concatenate(leaves, axis=-1)
