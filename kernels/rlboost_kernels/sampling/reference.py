"""What sampling a token means, with sorts and running sums: the definition, for tests."""

import jax.numpy as jnp
from jax import Array


def draw(
    logits: Array,  # f32[T, V]
    noise: Array,  # f32[T]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    truncated: bool,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """Invert the cumulative distribution over ids at `noise`."""
    V = logits.shape[1]
    best = logits.max(axis=-1, keepdims=True)
    greedy = (temperature <= 0)[:, None]
    scaled = (logits - best) / jnp.where(greedy, 1.0, temperature[:, None])
    first = jnp.argmax(logits, axis=-1)[:, None]
    keep = ~greedy | (jnp.arange(V)[None, :] == first)
    if truncated:
        keep &= _likeliest(scaled, top_p[:, None], top_k[:, None])
    weights = jnp.where(keep, jnp.exp(scaled), 0.0)

    cumulative = jnp.cumsum(weights, axis=-1)
    total = cumulative[:, -1:]
    passed = (cumulative > noise[:, None] * total) & (weights > 0)
    last = V - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=-1)
    tokens = jnp.where(passed.any(axis=-1), jnp.argmax(passed, axis=-1), last).astype(jnp.int32)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    return tokens, chosen - jnp.log(total[:, 0])


def _likeliest(
    scaled: Array,  # f32[T, V]
    top_p: Array,  # f32[T, 1]
    top_k: Array,  # i32[T, 1]
) -> Array:  # bool[T, V]
    """Sort, cut to k, then to what comes before the mass is reached, and put back in place."""
    V = scaled.shape[1]
    order = jnp.argsort(-scaled, axis=-1, stable=True)
    kept = (jnp.arange(V)[None, :] < top_k) | (top_k <= 0)
    weights = jnp.where(kept, jnp.exp(jnp.take_along_axis(scaled, order, axis=1)), 0.0)
    before = jnp.cumsum(weights, axis=-1) - weights
    mass = top_p * weights.sum(axis=-1, keepdims=True)
    kept &= (before < mass) | (top_p >= 1) | (jnp.arange(V)[None, :] == 0)
    return jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=1)
