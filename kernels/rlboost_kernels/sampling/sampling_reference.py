"""What sampling a token means, with sorts and running sums: the definition, for tests."""

import jax.numpy as jnp
from jax import Array


def draw(
    logits: Array,  # f32[T, V]
    noise: Array,  # f32[T] or f32[T, levels, 16]
    temperature: Array,  # f32[T]
    top_p: Array,  # f32[T]
    top_k: Array,  # i32[T]
    *,
    truncated: bool,
) -> tuple[Array, Array]:  # i32[T], f32[T]
    """Invert the cumulative distribution over ids at `noise`, or let the nodes of a tree race."""
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
    if noise.ndim == 3:
        tokens = _raced(weights, noise)
    else:
        passed = (cumulative > noise[:, None] * total) & (weights > 0)
        last = V - 1 - jnp.argmax((weights > 0)[:, ::-1], axis=-1)
        tokens = jnp.where(passed.any(axis=-1), jnp.argmax(passed, axis=-1), last)
    chosen = jnp.take_along_axis(scaled, tokens[:, None], axis=1)[:, 0]
    return tokens.astype(jnp.int32), chosen - jnp.log(total[:, 0])


def _raced(
    weights: Array,  # f32[T, V]
    noise: Array,  # f32[T, levels, 16]
) -> Array:  # i32[T]
    """Narrow the entries down, level by level, to the child with the largest sum for its number."""
    ids = jnp.arange(weights.shape[1])[None, :]
    for level in reversed(range(noise.shape[1])):
        child = (ids >> 4 * level) & 15
        parts = jnp.stack([jnp.where(child == c, weights, 0.0).sum(axis=-1) for c in range(16)], 1)
        rates = jnp.where(parts > 0, parts / noise[:, level], -1.0)
        weights = jnp.where(child == jnp.argmax(rates, axis=1)[:, None], weights, 0.0)
    return jnp.argmax(weights > 0, axis=-1)


def _likeliest(
    scaled: Array,  # f32[T, V]
    top_p: Array,  # f32[T, 1]
    top_k: Array,  # i32[T, 1]
) -> Array:  # bool[T, V]
    """Sort, cut to k and then to the mass, and undo the sort."""
    V = scaled.shape[1]
    order = jnp.argsort(-scaled, axis=-1, stable=True)
    kept = (jnp.arange(V)[None, :] < top_k) | (top_k <= 0)
    weights = jnp.where(kept, jnp.exp(jnp.take_along_axis(scaled, order, axis=1)), 0.0)
    before = jnp.cumsum(weights, axis=-1) - weights
    mass = top_p * weights.sum(axis=-1, keepdims=True)
    kept &= (before < mass) | (top_p >= 1) | (jnp.arange(V)[None, :] == 0)
    return jnp.take_along_axis(kept, jnp.argsort(order, axis=-1), axis=1)
