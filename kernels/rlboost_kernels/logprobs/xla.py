"""Selected log-probabilities block by block, forwards and backwards, on any platform.

The logits of `rows` × `entries` are made, summed and forgotten; the derivative makes them again.
Blocks of rows are strided: block c has rows c, c + C, …. A batch whose rows are split over
devices then has a part of every block on every device, where blocks of neighbours would be
computed by all devices for each other.

With one block of entries the arithmetic is the plain one: a matrix product, its maximum, the sum
of exponentials. With several, sums follow a running maximum.

Source: the running softmax of Milakov and Gimelshein 2018, arXiv:1805.02867; recomputing logits
in the derivative as in Wijmans et al. 2024, arXiv:2411.09009.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.logprobs.shards import (
    Options,
    Sums,
    float32_product,
    gathered,
    local_tokens,
    lower,
    over_shards,
    results,
    scaled_logits,
    summed_like,
    vary_alike,
)

_LOWEST = float(jnp.finfo(jnp.float32).min)


class _Row(NamedTuple):
    """What the derivative knows of each row: all are [N], or blocks of it."""

    tokens: Array
    maximum: Array
    log_total: Array
    entropy: Array
    by_logprob: Array  # cotangents
    by_entropy: Array


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def select(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V]
    tokens: Array,  # i32[N]
    options: Options,
) -> tuple[Array, Array, Array]:  # f32[N], f32[N], f32[N]
    """Log-probabilities, entropies and masses below; see `api.selected_logprobs`."""
    return _forward(hidden, unembedding, tokens, options)[0]


def _forward(
    hidden: Array, unembedding: Array, tokens: Array, options: Options
) -> tuple[tuple[Array, Array, Array], tuple[Array, ...]]:
    whole = gathered(unembedding, options.gather_axis)
    own_hidden, own_whole, own_tokens = vary_alike(hidden, whole, tokens)
    sums = _sums(own_hidden, own_whole, own_tokens, options)
    logprobs, entropy, below = results(sums)
    kept = (hidden, unembedding, whole, tokens, sums.maximum, jnp.log(sums.total), entropy)
    return (logprobs, entropy, below), kept


def _backward(
    options: Options, kept: tuple[Array, ...], cotangents: tuple[Array, Array, Array]
) -> tuple[Array, Array, None]:
    hidden, unembedding, whole, tokens, *of_rows = kept
    tokens = local_tokens(tokens, whole, options.axis_name)
    own_hidden, own_whole, *of_rows = vary_alike(hidden, whole, tokens, *of_rows, *cotangents[:2])
    by_hidden, by_whole = _gradients(own_hidden, own_whole, _Row(*of_rows), options)
    return (
        summed_like(by_hidden, hidden),
        summed_like(by_whole, unembedding, options.gather_axis),
        None,
    )


select.defvjp(_forward, _backward)


def _gradients(
    hidden: Array, unembedding: Array, rows: _Row, options: Options
) -> tuple[Array, Array]:  # f32[N, E], f32[E, V]
    """Of this device's rows and columns."""
    (N, E), V = hidden.shape, unembedding.shape[1]
    num_rows, num_entries = _num_blocks(hidden, unembedding, options)
    if num_rows * num_entries == 1:
        return _block_gradients(hidden, unembedding, rows, 0, 0, options)

    hidden_RCE = _strided(hidden, num_rows)
    rows_RC = _Row(*(_strided(value, num_rows) for value in rows))

    def add_block(i: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        by_hidden, by_unembedding = gradients
        c, k = i % num_rows, i // num_rows
        start, columns = _columns(unembedding, k, options)
        by_block, by_columns = _block_gradients(
            _index(hidden_RCE, c),
            columns,
            _Row(*(_index(value, c) for value in rows_RC)),
            start,
            k * options.entries - start,
            options,
        )
        by_columns += jax.lax.dynamic_slice_in_dim(by_unembedding, start, columns.shape[1], axis=1)
        return (
            by_hidden.at[:, c].add(by_block),
            jax.lax.dynamic_update_slice_in_dim(by_unembedding, by_columns, start, axis=1),
        )

    start = (
        jnp.zeros_like(hidden_RCE, jnp.float32),
        jnp.zeros_like(unembedding, jnp.float32),
    )
    by_hidden, by_unembedding = jax.lax.fori_loop(0, num_rows * num_entries, add_block, start)
    return by_hidden.reshape(-1, E)[:N], by_unembedding.reshape(E, V)


def _sums(hidden: Array, unembedding: Array, tokens: Array, options: Options) -> Sums:
    """Sums over the whole vocabulary for each row."""
    N = hidden.shape[0]
    tokens = local_tokens(tokens, unembedding, options.axis_name)
    num_rows, num_entries = _num_blocks(hidden, unembedding, options)

    def of_rows(hidden: Array, tokens: Array) -> Sums:
        def of_block(k: Array | int) -> Sums:
            start, columns = _columns(unembedding, k, options)
            skipped = k * options.entries - start if num_entries > 1 else 0
            return _block_sums(hidden, columns, tokens - start, skipped, options)

        def add_block(k: Array, sums: Sums) -> Sums:
            block = of_block(k)
            maximum = jnp.maximum(sums.maximum, block.maximum)
            _, *left = lower(sums, maximum)
            _, *right = lower(block, maximum)
            return Sums(maximum, *(a + b for a, b in zip(left, right, strict=True)))

        return jax.lax.fori_loop(1, num_entries, add_block, of_block(0))

    if num_rows == 1:
        sums = of_rows(hidden, tokens)
    else:
        hidden_RCE, tokens_RC = _strided(hidden, num_rows), _strided(tokens, num_rows)
        blocks = jax.lax.map(
            lambda c: of_rows(_index(hidden_RCE, c), _index(tokens_RC, c)), jnp.arange(num_rows)
        )
        sums = Sums(*(value.T.reshape(-1)[:N] for value in blocks))
    return over_shards(sums, options.axis_name)


def _block_sums(
    hidden: Array,  # [R, E]
    columns: Array,  # [E, entries]
    tokens: Array,  # i32[R], counted from the first column
    skipped: Array | int,  # leading columns that an earlier block had
    options: Options,
) -> Sums:
    z = scaled_logits(hidden, columns, options)
    entries = z.shape[1]
    if not isinstance(skipped, int):
        z = jnp.where(jnp.arange(entries)[None, :] >= skipped, z, _LOWEST)
    maximum = z.max(axis=-1)
    d = z - maximum[:, None]
    e = jnp.exp(d)
    here = (tokens >= skipped) & (tokens < entries)
    at = jnp.clip(tokens, 0, entries - 1)[:, None]
    selected = jnp.where(here, jnp.take_along_axis(z, at, axis=1)[:, 0], 0.0)
    below = jnp.where(jnp.arange(entries)[None, :] < tokens[:, None], e, 0.0)
    return Sums(maximum, e.sum(axis=-1), (e * d).sum(axis=-1), selected, below.sum(axis=-1))


def _block_gradients(
    hidden: Array,  # [R, E]
    columns: Array,  # [E, entries]
    rows: _Row,  # of R rows; tokens counted from the first column held here
    start: Array | int,  # of the columns among those held here
    skipped: Array | int,  # leading columns that an earlier block had
    options: Options,
) -> tuple[Array, Array]:  # f32[R, E], f32[E, entries]
    """Of the log-probability, 1 at the token - p; of the entropy, -p (log p + entropy)."""
    z = scaled_logits(hidden, columns, options)
    ids = jnp.arange(z.shape[1])[None, :]
    logp = z - rows.maximum[:, None] - rows.log_total[:, None]
    slope = rows.by_logprob[:, None] + rows.by_entropy[:, None] * (logp + rows.entropy[:, None])
    at_token = jnp.where(ids == (rows.tokens - start)[:, None], rows.by_logprob[:, None], 0.0)
    dz = (at_token - jnp.exp(logp) * slope) / options.temperature
    if options.soft_cap is not None:
        dz *= 1 - jnp.square(z * (options.temperature / options.soft_cap))
    if not isinstance(skipped, int):
        dz = jnp.where(ids >= skipped, dz, 0.0)
    dz = dz.astype(hidden.dtype)
    return float32_product(dz, columns.T), float32_product(hidden.T, dz)


def _num_blocks(hidden: Array, unembedding: Array, options: Options) -> tuple[int, int]:
    return -(-hidden.shape[0] // options.rows), -(-unembedding.shape[1] // options.entries)


def _columns(unembedding: Array, k: Array | int, options: Options) -> tuple[Array | int, Array]:
    """Block k of the vocabulary, moved left where it would reach over the end, and its start."""
    V, entries = unembedding.shape[1], options.entries
    if entries == V:
        return 0, unembedding
    start = jnp.minimum(k * entries, V - entries)
    return start, jax.lax.dynamic_slice_in_dim(unembedding, start, entries, axis=1)


def _strided(values: Array, num_blocks: int) -> Array:
    """[N, …] as [R, num_blocks, …], filled up with zeros; entry [:, c] is block c."""
    N = values.shape[0]
    R = -(-N // num_blocks)
    padding = [(0, R * num_blocks - N)] + [(0, 0)] * (values.ndim - 1)
    return jnp.pad(values, padding).reshape(R, num_blocks, *values.shape[1:])


def _index(values: Array, c: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(values, c, axis=1, keepdims=False)
