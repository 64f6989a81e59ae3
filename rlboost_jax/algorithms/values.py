"""The loss of a critic."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def value_losses(
    values: Float[Array, "*tokens"],
    old_values: Float[Array, "*tokens"],
    returns: Float[Array, "*tokens"],
    mask: Bool[Array, "*tokens"],
    *,
    value_clip: float,
) -> Float[Array, "*tokens"]:
    """Half the squared error of each token; 0 outside the mask.

    Args:
        value_clip: the greater of the errors of the value and of the value within this far of
            the old one counts; 0: the value's own, whatever it was before.

    Source: Schulman et al. 2017, arXiv:1707.06347, as in OpenAI's baselines (ppo2): the paper
    has the squared error, the clip is of the implementation.
    """
    errors = jnp.square(jnp.where(mask, values - returns, 0.0))
    if not value_clip:
        return errors / 2
    within = old_values + jnp.clip(values - old_values, -value_clip, value_clip)
    clipped_errors = jnp.square(jnp.where(mask, within - returns, 0.0))
    return jnp.maximum(errors, clipped_errors) / 2
