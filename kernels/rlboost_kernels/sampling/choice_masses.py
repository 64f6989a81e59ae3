"""The sums of weights that a token's noise decides between."""

from typing import assert_never

import jax.numpy as jnp
from jax import Array

from rlboost_kernels.sampling import sum_tree
from rlboost_kernels.sampling.noise import NoiseKind


def choice_masses(
    weights: Array,  # f32[N, n], of neighbouring entries of a vocabulary
    tokens: Array,  # i32[N], ids in the whole vocabulary
    *,
    noise: NoiseKind,
    vocabulary: int | None = None,
    first: Array | int = 0,
    aligned: bool = True,
) -> Array:  # f32[N], or f32[N, levels, 16]
    """Sum the weights of smaller ids, or of the children of a tree's nodes that lead to a token.

    What parts of a vocabulary give is added up. See `logprobs_api.choice_intervals`.

    Args:
        vocabulary: number of all entries; None: these are all.
        first: id of the first of these entries.
        aligned: whether `first` is a multiple of 16, where a trace does not know it.
    """
    match noise:
        case "inverse_cdf":
            ids = jnp.arange(weights.shape[1])[None, :]
            return jnp.where(ids < (tokens - first)[:, None], weights, 0.0).sum(axis=-1)
        case "tree":
            return sum_tree.path_sums(
                weights,
                tokens,
                vocabulary=vocabulary or weights.shape[1],
                first=first,
                aligned=aligned,
            )
        case _:
            assert_never(noise)
