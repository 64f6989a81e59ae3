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
from rlboost_jax.settings.algorithm_config import KlEstimator, KlGradient


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


def distilled_advantages(
    logprobs: Float[np.ndarray, " T"],
    teacher_logprobs: Float[np.ndarray, " T"],
    advantages: Float[np.ndarray, " T"] | float,
    *,
    weight: float,
    reward_weight: float,
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, " T"]]:
    """Advantages of on-policy distillation, on the host: those of rewards and, of each token,
    log(teacher / policy). Its mean is minus the KL from the policy to the teacher, and a token has
    its own difference alone: the discount is 0.

    Args:
        logprobs: of tokens as the policy sampled them.
        advantages: that follow from rewards, of all tokens or of each.

    Returns:
        The advantages in float32, and log(teacher / policy) in float64.

    Source: Agarwal et al. 2024, arXiv:2306.13649, on-policy with the reverse KL; as an advantage
    Lu and Thinking Machines Lab 2025, "On-Policy Distillation".
    """
    gaps = np.asarray(teacher_logprobs, np.float64) - logprobs
    mixed = reward_weight * np.asarray(advantages, np.float64) + weight * gaps
    return mixed.astype(np.float32), gaps


def distilled_losses(
    logprobs: Float[Array, "*tokens"],
    teacher_logprobs: Float[Array, "*tokens"],
    mask: Bool[Array, "*tokens"],
    log_ratio: Float[Array, "*tokens"],
) -> Float[Array, "*tokens"]:
    """What each token adds to the loss for the KL from the policy to a teacher: k2 × ratio.

    Its mean gradient over tokens of the policy that sampled, `log_ratio` away, is that of
    KL(policy, teacher): with r = policy / sampler, the sampler's mean of r × log(policy / teacher)
    × ∇ log policy, and the ratio has no gradient of its own. At a ratio of 1 the gradient of each
    token is that of `distilled_advantages`.

    Args:
        log_ratio: of each token, policy to the one that sampled.

    Source: Liu et al. 2025, arXiv:2510.01555: k2 as a loss, with its correction off policy.
    """
    ratio = jax.lax.stop_gradient(jnp.exp(log_ratio))
    return ratio * kl_estimates(logprobs, teacher_logprobs, mask, estimator="k2")


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
