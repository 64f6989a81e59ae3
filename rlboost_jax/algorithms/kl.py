"""Estimates of KL(policy, reference) from sampled tokens, and the gradients they have.

With d = log reference - log policy of a token sampled from the policy:

    k1 = -d             unbiased, of either sign
    k2 = d² / 2         biased, never negative
    k3 = exp(d) - d - 1 unbiased, never negative

What is unbiased as a value need not be as a loss, since sampling depends on the policy too. On
policy, the gradient of the mean of k1 is 0 whatever the reference; that of k2 is the gradient
of KL(policy, reference); that of k3 is the gradient of KL(reference, policy).

Source: Schulman 2020, "Approximating KL divergence", http://joschu.net/blog/kl-approx.html.
"""

from typing import assert_never

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from rlboost_jax.algorithms.ratios import MOST_LOG_RATIO
from rlboost_jax.settings.algorithm import KlEstimator, KlGradient


def kl_estimates(
    logprobs: Float[Array, "*tokens"],
    reference_logprobs: Float[Array, "*tokens"],
    mask: Bool[Array, "*tokens"],
    *,
    estimator: KlEstimator,
) -> Float[Array, "*tokens"]:
    """k1, k2 or k3 of each token, nats; 0 outside the mask."""
    difference = jnp.where(mask, reference_logprobs - logprobs, 0.0)
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return difference**2 / 2
        case "k3":
            difference = jnp.clip(difference, -MOST_LOG_RATIO, MOST_LOG_RATIO)
            return jnp.expm1(difference) - difference
        case _:
            assert_never(estimator)


def kl_losses(
    logprobs: Float[Array, "*tokens"],
    reference_logprobs: Float[Array, "*tokens"],
    mask: Bool[Array, "*tokens"],
    log_ratio: Float[Array, "*tokens"],
    *,
    estimator: KlEstimator,
    gradient: KlGradient,
) -> Float[Array, "*tokens"]:
    """What each token adds to the loss, with one of three gradients.

    Args:
        log_ratio: of each token, policy to old policy.
        gradient: "own", the estimator's; "straight_through", that of k2 whatever the
            estimator, which is right on policy; "importance", that of estimator × ratio,
            which is right under samples of the old policy if the estimator is unbiased (k1, k3).

    Source: "own" with k3 is Shao et al. 2024, arXiv:2402.03300, equation 4; "importance" is
    DeepSeek-AI 2025, arXiv:2512.02556, section 3.1.
    """
    values = kl_estimates(logprobs, reference_logprobs, mask, estimator=estimator)
    match gradient:
        case "own":
            return values
        case "importance":
            return jnp.exp(log_ratio) * values
        case "straight_through":
            through = kl_estimates(logprobs, reference_logprobs, mask, estimator="k2")
            return jax.lax.stop_gradient(values) + (through - jax.lax.stop_gradient(through))
        case _:
            assert_never(gradient)


def kl_rewards(
    logprobs: Float[np.ndarray, " T"],
    reference_logprobs: Float[np.ndarray, " T"],
    *,
    estimator: KlEstimator,
    coefficient: float,
) -> Float[np.ndarray, " T"]:
    """What the KL takes from the reward of each token, on the host: -coefficient × estimate.

    Source: Ouyang et al. 2022, arXiv:2203.02155, equation 2, for k1.
    """
    difference = np.asarray(reference_logprobs, np.float64) - logprobs
    match estimator:
        case "k1":
            return coefficient * difference
        case "k2":
            return -coefficient * difference**2 / 2
        case "k3":
            difference = np.clip(difference, -MOST_LOG_RATIO, MOST_LOG_RATIO)
            return -coefficient * (np.expm1(difference) - difference)
        case _:
            assert_never(estimator)
