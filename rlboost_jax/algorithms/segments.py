"""Sums over each sequence of packed rows."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def segment_sums(values: Float[Array, "R T"], segments: Int[Array, "R T"]) -> Float[Array, "R T"]:
    """At every position the sum over its own sequence; all positions of one have equal bits.

    Additions go along the row in the order of a tree, forwards and in the gradient: no scatter
    is involved, whose order a GPU does not promise.

    Args:
        segments: whose positions these are; those of one sequence lie together in one row.
    """

    def add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        (sums, left_segments), (more, right_segments) = left, right
        return jnp.where(left_segments == right_segments, sums + more, more), right_segments

    running, _ = jax.lax.associative_scan(add, (values, segments), axis=1)
    after = jnp.pad(segments[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    totals = jnp.where(segments != after, running, 0.0)  # at the last position of each sequence
    everywhere, _ = jax.lax.associative_scan(add, (totals, segments), axis=1, reverse=True)
    return everywhere


def segment_means(
    values: Float[Array, "R T"], mask: Bool[Array, "R T"], segments: Int[Array, "R T"]
) -> Float[Array, "R T"]:
    """At every position the mean over those of its sequence that the mask names, or 0."""
    sums = segment_sums(jnp.where(mask, values, 0.0), segments)
    return sums / jnp.maximum(segment_sums(mask.astype(values.dtype), segments), 1.0)
