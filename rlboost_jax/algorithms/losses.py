"""Losses of policy optimisation, as weighted sums over tokens.

Nothing here divides: an update is made of many packed batches, and only the sum over all
of them may be divided, by the update's own number of tokens or sequences. Weights say how
much a token counts: 1 for the mean over tokens, 1 / (tokens of its response) for the mean
over sequences, 0 where there is no response token. Log-probabilities are in nats.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float


def clipped_policy_loss(
    logprobs: Float[Array, "*tokens"],
    behaviour_logprobs: Float[Array, "*tokens"],
    advantages: Float[Array, "*tokens"],
    weights: Float[Array, "*tokens"],
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Clipped surrogate loss, to be minimised, and how many tokens the clip took out.

    The ratio is taken against the behaviour policy token by token, so that a trajectory
    that met two policy versions needs no special case.

    Args:
        clip_low, clip_high: the ratio has a gradient up to 1 + clip_high where the
            advantage is positive and down to 1 - clip_low where it is negative.

    Returns:
        The weighted sum, and the number of tokens of positive weight without a gradient.

    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds from Yu et
    al. 2025, arXiv:2503.14476, section 3.1.
    """
    ratio = jnp.exp(jnp.where(weights > 0, logprobs - behaviour_logprobs, 0.0))
    clipped_ratio = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    surrogate = jnp.minimum(ratio * advantages, clipped_ratio * advantages)
    stopped = clipped_ratio * advantages < ratio * advantages
    return -(surrogate * weights).sum(), stopped.sum().astype(jnp.float32)


def kl_to_reference(
    logprobs: Float[Array, "*tokens"],
    reference_logprobs: Float[Array, "*tokens"],
    weights: Float[Array, "*tokens"],
) -> Float[Array, ""]:
    """Estimate of KL(policy, reference) from the sampled tokens: unbiased, never negative.

    With d = reference - policy log-probability, each token adds exp(d) - d - 1 ("k3").

    Source: Schulman 2020, "Approximating KL divergence"; Shao et al. 2024,
    arXiv:2402.03300, equation 4.
    """
    difference = jnp.where(weights > 0, reference_logprobs - logprobs, 0.0)
    return ((jnp.expm1(difference) - difference) * weights).sum()
