"""What selected log-probabilities mean, from all logits at once: the definition, for tests."""

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.logprobs.shards import (
    Options,
    Sums,
    gathered,
    local_tokens,
    over_shards,
    results,
    scaled_logits,
    vary_alike,
)


def select(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V]
    tokens: Array,  # i32[N]
    options: Options,
) -> tuple[Array, Array, Array]:  # f32[N], f32[N], f32[N]
    """Log-softmax of the logits at the tokens, entropy, and the probability of smaller ids;
    differentiated by JAX."""
    whole = gathered(unembedding, options.gather_axis)
    hidden, unembedding, tokens = vary_alike(hidden, whole, tokens)
    V = unembedding.shape[1]
    tokens = local_tokens(tokens, unembedding, options.axis_name)
    z_NV = scaled_logits(hidden, unembedding, options)
    maximum = jax.lax.stop_gradient(z_NV.max(axis=-1))
    d_NV = z_NV - maximum[:, None]
    ids = jnp.arange(V)[None, :]
    sums = Sums(
        maximum,
        jnp.exp(d_NV).sum(axis=-1),
        (jnp.exp(d_NV) * d_NV).sum(axis=-1),
        jnp.where(ids == tokens[:, None], z_NV, 0.0).sum(axis=-1),
        jnp.where(ids < tokens[:, None], jnp.exp(d_NV), 0.0).sum(axis=-1),
    )
    return results(over_shards(sums, options.axis_name))
