"""Weights for samples of an engine that is not quite the policy it stands for.

An engine computes in another precision or order than the learner: w = old / behaviour is the
importance of what it sampled, old being recomputed by the learner from the same parameters.
"""

from typing import assert_never

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlboost_jax.algorithms.outside_functions import arrays_from_outside
from rlboost_jax.algorithms.ratios import MOST_LOG_RATIO, log_ratios
from rlboost_jax.algorithms.segments import segment_means, segment_sums
from rlboost_jax.settings.algorithm_config import ActiveCorrection, CorrectionLevel, LossAggregation
from rlboost_jax.settings.outside import Outside


def correction_weights(
    old_logprobs: Float[Array, "R T"],
    behaviour_logprobs: Float[Array, "R T"],
    mask: Bool[Array, "R T"],
    segments: Int[Array, "R T"],
    *,
    correction: ActiveCorrection,
    level: CorrectionLevel,
    low: float,
    high: float,
) -> tuple[Float[Array, "R T"], Bool[Array, "R T"]]:
    """Weights of the tokens' losses, without a gradient, and which of them are changed by a bound.

    Args:
        correction: "truncate" cuts w off at `high` (TIS). "mask" gives w outside of
            [low, high] weight 0 and the divisor stays as it is (IcePop, MIS). "reject" does the
            same, and what has no weight does not count in the divisor either. A function of
            another package leaves the divisor as it is.
        level: w of the "token", of the whole "sequence" (the product over its tokens), or
            "geometric": the sequence's mean per token.

    Source: truncation from Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"; masks from Ling team 2025, arXiv:2510.18855, section 3.3 (token)
    and Liu et al. 2025, "When speed kills stability" (sequence).
    """
    log_weight = log_ratios(old_logprobs, behaviour_logprobs, mask)
    match level:
        case "token":
            pass
        case "sequence":
            log_weight = segment_sums(jnp.where(mask, log_weight, 0.0), segments)
            log_weight = jnp.clip(log_weight, -MOST_LOG_RATIO, MOST_LOG_RATIO)
        case "geometric":
            log_weight = segment_means(log_weight, mask, segments)
        case _:
            assert_never(level)
    weight = jax.lax.stop_gradient(jnp.exp(log_weight))
    match correction:
        case "truncate":
            return jnp.minimum(weight, high), mask & (weight > high)
        case "mask" | "reject":
            beyond = (weight < low) | (weight > high)
            return jnp.where(beyond, 0.0, weight), mask & beyond
        case Outside():
            given = {"weight": weight, "mask": mask, "correction_low": low, "correction_high": high}
            return arrays_from_outside(correction, given, weight.shape)
        case _:
            assert_never(correction)


def kept_weights(
    kept: Bool[Array, "R T"],
    segments: Int[Array, "R T"],
    *,
    loss_aggregation: LossAggregation,
    shares: Float[Array, "R T"] | None = None,
) -> tuple[Float[Array, "R T"], Float[Array, ""]]:
    """Weights and divisor of an update that knows nothing of the tokens that were rejected.

    Args:
        kept: response tokens that are left.
        loss_aggregation: not "constant", whose divisor no token is in.
        shares: at every position, its sequence's share of its response, 1 where that has one
            sequence. A sequence counts by its share if any of its tokens are kept. None: all are 1.

    Returns:
        Weights as `packing.py` gives them, and what this batch adds to the update's divisor:
        kept tokens, or responses with a kept token.
    """
    ones = kept.astype(jnp.float32)
    counts = segment_sums(ones, segments)
    before = jnp.pad(segments[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    parts = ((counts > 0) & (segments != before)).astype(jnp.float32)
    shares = jnp.ones_like(parts) if shares is None else shares
    responses = (parts * shares).sum()
    match loss_aggregation:
        case "token_mean":
            return ones, ones.sum()
        case "sequence_mean":
            return ones * shares / jnp.maximum(counts, 1.0), responses
        case "sequence_sum":
            return ones, responses
        case "constant":
            raise ValueError('loss_aggregation "constant" counts what was rejected, too')
        case _:
            assert_never(loss_aggregation)
