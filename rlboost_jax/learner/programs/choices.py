"""Check that a sampled token is the one that its noise selects.

A server holds the weights: it could choose any token and report its true log-probability. But the
noise of a token is a function of its name, and the distribution follows from the learner's own
logits, so the learner can tell which token had to be sampled: the one at whose interval of the
cumulative distribution the noise lies or, with noise for a tree of sums, the one to which the
choices of its nodes lead. Only rounding may move what a choice is made between.

Rounding moves it a little everywhere, and far hardly ever. A token may be as far out as that;
a server that forges many tokens within that bound is detected by the mean of their sequence.
"""

from typing import Final

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key
from rlboost_kernels import exponentials, noise_keys, uniforms

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
    masses: Float[Array, "N ..."],
    unsure: Float[Array, " N"] | float = 0.0,
) -> Float[Array, " N"]:
    """Probability that has to move for a target's noise to select it: 0 where it does.

    That is the probability between its interval and its noise or, in a tree, what has to go over
    from a sibling on some level to the node on the way to the target.

    Args:
        batch: R rows of T positions, N = R × T. Of targets without `noise_known` nothing is
            known: their gaps are 0.
        logprobs: of the targets, in the distribution that they are sampled from, nats.
        masses: [N], probability of the ids smaller than the target, in the same distribution; or
            [N, levels, 16], those of the children of a tree's nodes, which selects the kind of
            noise.
        unsure: how much of it may have been cut off, or not, see `sampled_logprobs`.
    """
    if batch.noise_names is None or batch.noise_known is None:
        return jnp.zeros_like(logprobs)
    seed, number, sample, place = jnp.asarray(batch.noise_names).reshape(-1, 4).T
    keys, place = noise_keys(seed, number, sample), place.astype(jnp.int32)
    if masses.ndim == 1:
        noise = uniforms(keys, place)
        outside = jnp.maximum(masses - noise, noise - masses - jnp.exp(logprobs))
    else:
        outside = _lost_races(masses, jnp.ravel(batch.targets), keys, place)
    outside -= unsure
    return jnp.where(jnp.asarray(batch.noise_known).ravel(), jnp.maximum(outside, 0.0), 0.0)


def _lost_races(
    masses: Float[Array, "N levels 16"],
    targets: Int[Array, " N"],
    keys: Key[Array, " N"],
    place: Int[Array, " N"],
) -> Float[Array, " N"]:
    """Probability that has to go over to nodes on the way to each target for them to come first.

    Children arrive at their number by their probability. With a for the target's and b for another,
    x goes over where (a.p + x) / a.number = (b.p - x) / b.number.
    """
    levels = masses.shape[1]
    numbers = exponentials(keys, place, vocabulary=16**levels)
    children = (targets[:, None] >> 4 * jnp.arange(levels)[None]) & 15
    own = jnp.take_along_axis(masses, children[..., None], axis=2)
    own_number = jnp.take_along_axis(numbers, children[..., None], axis=2)
    lost = (masses * own_number - own * numbers) / (numbers + own_number)
    return lost.max(axis=(1, 2), initial=0.0)


def greedy_gaps(
    batch: PackedBatch, logprobs: Float[Array, " N"]
) -> tuple[Float[Array, " N"], Float[Array, " N"]]:
    """Both gaps for greedy sampling, which has no noise.

    They are the nats that a target is below the likeliest token, or differs from its reported
    value; and by how much it is the less probable of the two.

    Args:
        logprobs: of the targets, each of the distribution that is left of itself and the likeliest
            token: 0 where it is that.
    """
    p = jnp.exp(logprobs)
    below = jnp.where(p <= 0.5, jnp.log1p(-p) - logprobs, 0.0)
    said = jnp.abs(jnp.ravel(batch.behaviour_logprobs))
    return jnp.maximum(jnp.maximum(below, 0.0), said), jnp.maximum(1 - 2 * p, 0.0)


def mean_choice_gaps(batch: PackedBatch, gaps: Float[Array, " N"]) -> Float[Array, " N"]:
    """Mean gap of the sequence of each target, with `SPARE_TOKENS` added to its length."""
    mask, segments = jnp.asarray(batch.response_mask), jnp.asarray(batch.segments)
    counts = segment_sums(mask.astype(jnp.float32), segments)
    means = segment_sums(gaps.reshape(mask.shape), segments) / (counts + SPARE_TOKENS)
    return jnp.where(mask, means, 0.0).ravel()
