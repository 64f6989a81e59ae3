"""Whether a sampled token is the one that its noise selects.

A server holds the weights: it could choose any token and report its true log-probability. But the
noise of a token is a function of its name, and the distribution follows from the learner's own
logits, so the learner can tell which token had to be sampled: the one at whose interval of the
cumulative distribution the noise lies. Only rounding may move the edges of an interval.

Rounding moves an edge a little everywhere, and far hardly ever. A token may be as far out as that;
whoever forges many tokens within the bound of one is seen by the mean of their sequence.
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float
from rlboost_kernels import noise_keys, uniforms

from rlboost_jax.algorithms.segments import segment_sums
from rlboost_jax.learner.packing import PackedBatch

SPARE_TOKENS: Final = 64  # added to every sequence, without a gap: one token is no habit


def logprob_gaps(
    batch: PackedBatch, logprobs: Float[Array, " N"], unsure: Float[Array, " N"] | float = 0.0
) -> Float[Array, " N"]:
    """|recomputed - behaviour| log-probability of each target, less what a cut that rounding has
    moved may have changed: everything that is kept is divided by its sum.

    Args:
        unsure: see `sampled_logprobs`.
    """
    gaps = jnp.abs(logprobs - jnp.ravel(batch.behaviour_logprobs))
    if isinstance(unsure, float):
        return gaps
    return jnp.where(unsure > 0, jnp.maximum(gaps + jnp.log1p(-jnp.minimum(unsure, 0.9)), 0), gaps)


def choice_gaps(
    batch: PackedBatch,
    logprobs: Float[Array, " N"],
    below: Float[Array, " N"],
    unsure: Float[Array, " N"] | float = 0.0,
) -> Float[Array, " N"]:
    """Probability between a target's interval and its noise: 0 where the noise lies inside.

    Args:
        batch: R rows of T positions, N = R × T. Of targets without `noise_known` nothing is
            known: their gaps are 0.
        logprobs: of the targets, in the distribution that they are sampled from, nats.
        below: probability of the ids smaller than the target, in the same distribution.
        unsure: how much of it may have been cut off, or not, see `sampled_logprobs`.
    """
    if batch.noise_names is None or batch.noise_known is None:
        return jnp.zeros_like(below)
    seed, number, sample, place = jnp.asarray(batch.noise_names).reshape(-1, 4).T
    noise = uniforms(noise_keys(seed, number, sample), place.astype(jnp.int32))
    outside = jnp.maximum(below - noise, noise - below - jnp.exp(logprobs)) - unsure
    return jnp.where(jnp.asarray(batch.noise_known).ravel(), jnp.maximum(outside, 0.0), 0.0)


def greedy_gaps(
    batch: PackedBatch, logprobs: Float[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """What takes the place of both gaps where the likeliest token is chosen, without noise: nats
    that a target is below it, or what it is said to be below; and by how much it is the less
    probable of the two.

    Args:
        logprobs: of the targets, each of the distribution that is left of itself and the likeliest
            token: 0 where it is that.
    """
    p = jnp.exp(logprobs)
    below = jnp.where(p <= 0.5, jnp.log1p(-p) - logprobs, 0.0)
    said = jnp.abs(jnp.ravel(batch.behaviour_logprobs))
    return jnp.maximum(jnp.maximum(below, 0.0), said), jnp.maximum(1 - 2 * p, 0.0)


def mean_choice_gaps(batch: PackedBatch, gaps: Float[Array, " N"]) -> Float[Array, " N"]:
    """Mean gap of the sequence that a target is sampled in, `SPARE_TOKENS` counted with it."""
    mask, segments = jnp.asarray(batch.response_mask), jnp.asarray(batch.segments)
    counts = segment_sums(mask.astype(jnp.float32), segments)
    means = segment_sums(gaps.reshape(mask.shape), segments) / (counts + SPARE_TOKENS)
    return jnp.where(mask, means, 0.0).ravel()
