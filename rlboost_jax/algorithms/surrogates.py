"""What a token adds to the objective, given its ratio and its advantage.

All are to be maximised, none is weighted or summed, and each also tells which tokens its bounds
leave without a gradient. With the ratio at 1, the gradient of each but SAPO's with another
temperature is advantage × ∇ log π.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

Surrogate = tuple[Float[Array, "*tokens"], Bool[Array, "*tokens"]]  # objective, stopped


def clipped(
    ratio: Float[Array, "*tokens"],
    advantages: Float[Array, "*tokens"],
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float = 0.0,
) -> Surrogate:
    """The pessimistic one of the ratio and the clipped ratio, times the advantage.

    Args:
        clip_low, clip_high: the ratio has a gradient up to 1 + clip_high where the
            advantage is positive and down to 1 - clip_low where it is negative.
        dual_clip: where the advantage is negative, the ratio has none beyond this either; 0:
            no such bound.

    Source: Schulman et al. 2017, arXiv:1707.06347, equation 7; separate bounds from Yu et
    al. 2025, arXiv:2503.14476, section 3.1; the dual clip from Ye et al. 2019,
    arXiv:1912.09729, equation 5.
    """
    clipped_ratio = jnp.clip(ratio, 1 - clip_low, 1 + clip_high)
    surrogate = jnp.minimum(ratio * advantages, clipped_ratio * advantages)
    stopped = clipped_ratio * advantages < ratio * advantages
    if dual_clip:
        worst = dual_clip * advantages
        beyond = (advantages < 0) & (surrogate < worst)
        surrogate, stopped = jnp.where(beyond, worst, surrogate), stopped | beyond
    return surrogate, stopped


def cispo(
    ratio: Float[Array, "*tokens"],
    logprobs: Float[Array, "*tokens"],
    advantages: Float[Array, "*tokens"],
    *,
    clip_low: float,
    clip_high: float,
) -> Surrogate:
    """REINFORCE under a clipped weight without a gradient: every token keeps one of its own.

    Args:
        clip_low, clip_high: the weight is the ratio within [1 - clip_low, 1 + clip_high]. Both
            are offsets from 1: what TRL calls `epsilon_high` is 1 + clip_high.

    Source: MiniMax 2025, arXiv:2506.13585, equations 4 and 5.
    """
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1 - clip_low, 1 + clip_high))
    return weight * advantages * logprobs, jnp.zeros(ratio.shape, jnp.bool_)


def sapo(
    ratio: Float[Array, "*tokens"],
    advantages: Float[Array, "*tokens"],
    *,
    temperature_positive: float,
    temperature_negative: float,
) -> Surrogate:
    """A sigmoid gate in place of the clip: its slope is 1 on policy and fades on both sides.

    Args:
        temperature_positive, temperature_negative: τ where the advantage is positive, and
            elsewhere; the higher, the narrower the gate.

    Source: Gao et al. 2025, arXiv:2511.20347, equation 6.
    """
    temperature = jnp.where(advantages > 0, temperature_positive, temperature_negative)
    gate = jax.nn.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return gate * advantages, jnp.zeros(ratio.shape, jnp.bool_)


def reinforce(logprobs: Float[Array, "*tokens"], advantages: Float[Array, "*tokens"]) -> Surrogate:
    """Log-probability times advantage: right on policy only, for there is no ratio.

    Source: Williams 1992, doi:10.1007/BF00992696, section 4.
    """
    return advantages * logprobs, jnp.zeros(logprobs.shape, jnp.bool_)
