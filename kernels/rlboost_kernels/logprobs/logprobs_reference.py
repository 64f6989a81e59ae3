"""What selected log-probabilities mean, from all logits at once: the definition, for tests."""

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.logprobs.shards import (
    Options,
    Sums,
    gathered,
    local_tokens,
    masses_of,
    over_shards,
    results,
    scaled_logits,
    vary_alike,
)


def select(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V]
    tokens: Array,  # i32[N]
    count: Array | None,  # i32[]
    options: Options,
) -> tuple[Array, Array, Array]:  # f32[N], f32[N], f32[N] or f32[N, levels, 16]
    """Compute log-probabilities, entropies and masses; see `logprobs_api.choice_intervals`.

    They are differentiated by JAX. All rows are computed, whatever `count` is.
    """
    if options.frozen:
        unembedding = jax.lax.stop_gradient(unembedding)
    whole = gathered(unembedding, options.gather_axis)
    hidden, unembedding, tokens = vary_alike(hidden, whole, tokens)
    tokens = local_tokens(tokens, unembedding, options)
    z_NV = scaled_logits(hidden, unembedding, options)
    V = z_NV.shape[1]
    maximum = jax.lax.stop_gradient(z_NV.max(axis=-1))
    d_NV = z_NV - maximum[:, None]
    ids = jnp.arange(V)[None, :]
    sums = Sums(
        maximum,
        jnp.exp(d_NV).sum(axis=-1),
        (jnp.exp(d_NV) * d_NV).sum(axis=-1),
        jnp.where(ids == tokens[:, None], z_NV, 0.0).sum(axis=-1),
        masses_of(jnp.exp(d_NV), tokens, 0, V, options),
    )
    logprobs, entropy, masses = results(over_shards(sums, options.axis_name))
    return logprobs, jax.lax.stop_gradient(entropy) if options.frozen else entropy, masses
