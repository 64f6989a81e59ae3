"""How much likelier the policy makes a token, or a response, than the old policy did."""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from rlboost_jax.algorithms.segments import segment_means

MOST_LOG_RATIO: Final = 20.0  # nats; beyond it a ratio is cut off and has no gradient


def log_ratios(
    logprobs: Float[Array, "*tokens"],
    old_logprobs: Float[Array, "*tokens"],
    mask: Bool[Array, "*tokens"],
) -> Float[Array, "*tokens"]:
    """Difference of log-probabilities within ±20 nats; 0 outside the mask, whatever is there."""
    difference = jnp.where(mask, logprobs - old_logprobs, 0.0)
    return jnp.clip(difference, -MOST_LOG_RATIO, MOST_LOG_RATIO)


def sequence_log_ratios(
    log_ratio: Float[Array, "R T"], mask: Bool[Array, "R T"], segments: Int[Array, "R T"]
) -> Float[Array, "R T"]:
    """Log of the length-normalised ratio of each response, at each of its tokens.

    Source: Zheng et al. 2025, arXiv:2507.18071, equation 7.
    """
    return jnp.where(mask, segment_means(log_ratio, mask, segments), 0.0)


def sequence_token_log_ratios(
    log_ratio: Float[Array, "R T"], mask: Bool[Array, "R T"], segments: Int[Array, "R T"]
) -> Float[Array, "R T"]:
    """The value of the response's ratio with the gradient of the token's own: GSPO-token.

    Source: Zheng et al. 2025, arXiv:2507.18071, equation 14.
    """
    of_response = jax.lax.stop_gradient(sequence_log_ratios(log_ratio, mask, segments))
    return of_response + (log_ratio - jax.lax.stop_gradient(log_ratio))
