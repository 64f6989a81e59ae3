"""Selected log-probabilities block by block, forwards and backwards, on any platform.

The logits of `rows` × `entries` are made, summed and forgotten; the derivative makes them again,
unless the matrix is frozen: then the forward pass computes the derivative too, up to a factor.
Blocks of rows are strided: block c has rows c, c + C, …. A batch whose rows are split over
devices then has a part of every block on every device, where blocks of neighbours would be
computed by all devices for each other.

With one block of entries the arithmetic is the plain one: a matrix product, its maximum, the sum
of exponentials. With several, sums follow a running maximum.

Source: the running softmax of Milakov and Gimelshein 2018, arXiv:1805.02867; recomputing logits
in the derivative as in Wijmans et al. 2024, arXiv:2411.09009.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
    masses_of,
    over_shards,
    results,
    scaled_logits,
    summed_like,
    vary_alike,
)

_LOWEST = float(jnp.finfo(jnp.float32).min)


class _Row(NamedTuple):
    """Values of each row that the derivative needs: all are [N], or blocks of it."""

    tokens: Array
    maximum: Array
    log_total: Array
    entropy: Array
    by_logprob: Array  # cotangents
    by_entropy: Array


@partial(jax.custom_vjp, nondiff_argnums=(4,))
def select(
    hidden: Array,  # [N, E]
    unembedding: Array,  # [E, V], or [V, E] if transposed
    tokens: Array,  # i32[N]
    count: Array | None,  # i32[]
    options: Options,
) -> tuple[Array, Array, Array]:  # f32[N], f32[N], f32[N] or f32[N, levels, 16]
    """Compute log-probabilities, entropies and masses; see `logprobs_api.choice_intervals`.

    Args:
        count: number of leading rows to compute; None: all. What is returned for the rows after
            them is unspecified: blocks that have none of the leading rows are skipped.
    """
    whole = gathered(unembedding, options.gather_axis)
    own_hidden, own_whole, own_tokens = vary_alike(hidden, whole, tokens)
    sums, _ = _sums(own_hidden, own_whole, own_tokens, count, options)
    return results(sums)


def _forward(
    hidden: Array, unembedding: Array, tokens: Array, count: Array | None, options: Options
) -> tuple[tuple[Array, Array, Array], tuple[Array | None, ...]]:
    whole = gathered(unembedding, options.gather_axis)
    own_hidden, own_whole, own_tokens = vary_alike(hidden, whole, tokens)
    slope = _derives_at_once(unembedding, options)
    sums, slopes = _sums(own_hidden, own_whole, own_tokens, count, options, slope=slope)
    logprobs, entropy, masses = results(sums)
    if slope:
        return (logprobs, entropy, masses), (slopes, hidden)
    of_rows = (tokens, sums.maximum, jnp.log(sums.total), entropy)
    return (logprobs, entropy, masses), (hidden, unembedding, whole, count, *of_rows)


def _backward(
    options: Options, kept: tuple[Any, ...], cotangents: tuple[Array, Array, Array]
) -> tuple[Array, Array | None, None, None]:
    by_logprob, by_entropy, _ = cotangents
    if len(kept) == 2:
        slopes, hidden = kept
        return summed_like(by_logprob[:, None] * slopes, hidden), None, None, None
    hidden, unembedding, whole, count, tokens, *of_rows = kept
    if options.frozen:
        by_entropy = jnp.zeros_like(by_entropy)
    tokens = local_tokens(tokens, whole, options)
    own_hidden, own_whole, *of_rows = vary_alike(
        hidden, whole, tokens, *of_rows, by_logprob, by_entropy
    )
    by_hidden, by_whole = _gradients(own_hidden, own_whole, _Row(*of_rows), count, options)
    by_unembedding = None
    if not options.frozen:
        by_unembedding = summed_like(by_whole, unembedding, options.gather_axis)
    return summed_like(by_hidden, hidden), by_unembedding, None, None


select.defvjp(_forward, _backward)


def _derives_at_once(unembedding: Array, options: Options) -> bool:
    """Whether the forward pass computes the derivative too.

    A log-probability's derivative to its row is known from the row's logits, up to the cotangent,
    which is a factor.
    """
    return options.frozen and options.axis_name is None and _num_entries(unembedding, options) == 1


def _gradients(
    hidden: Array, unembedding: Array, rows: _Row, count: Array | None, options: Options
) -> tuple[Array, Array]:  # f32[N, E], f32 of the matrix's shape
    """Gradients of this device's rows and columns."""
    N = hidden.shape[0]
    num_rows, num_entries = _num_blocks(hidden, unembedding, options)
    if num_rows * num_entries == 1:
        return _block_gradients(hidden, unembedding, rows, 0, 0, options)

    hidden_RCE = _blocked(hidden, num_rows, count)
    rows_RC = _Row(*(_blocked(value, num_rows, count) for value in rows))
    axis = 0 if options.transposed else 1
    some_rows = _some_blocks(count, N, num_rows)

    def add_block(i: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        by_hidden, by_unembedding = gradients
        c, k = i % some_rows, i // some_rows
        start, columns = _columns(unembedding, k, options)
        by_block, by_columns = _block_gradients(
            _index(hidden_RCE, c),
            columns,
            _Row(*(_index(value, c) for value in rows_RC)),
            start,
            k * options.entries - start,
            options,
        )
        size = columns.shape[axis]
        by_columns += jax.lax.dynamic_slice_in_dim(by_unembedding, start, size, axis=axis)
        return (
            by_hidden.at[:, c].add(by_block),
            jax.lax.dynamic_update_slice_in_dim(by_unembedding, by_columns, start, axis=axis),
        )

    start = (
        jnp.zeros_like(hidden_RCE, jnp.float32),
        jnp.zeros_like(unembedding, jnp.float32),
    )
    by_hidden, by_unembedding = jax.lax.fori_loop(0, some_rows * num_entries, add_block, start)
    return _unblocked(by_hidden, N, count), by_unembedding


def _sums(
    hidden: Array,
    unembedding: Array,
    tokens: Array,
    count: Array | None,
    options: Options,
    *,
    slope: bool = False,
) -> tuple[Sums, Array | None]:
    """Sums over the whole vocabulary for each row.

    If `slope`, also the derivative of the token's log-probability to the row [N, E].
    """
    N = hidden.shape[0]
    tokens = local_tokens(tokens, unembedding, options)
    num_rows, num_entries = _num_blocks(hidden, unembedding, options)

    def of_rows(hidden: Array, tokens: Array) -> tuple[Sums, Array | None]:
        if slope:
            return _block_slopes(hidden, unembedding, tokens, options)

        def of_block(k: Array | int) -> Sums:
            start, columns = _columns(unembedding, k, options)
            skipped = k * options.entries - start if num_entries > 1 else 0
            z = scaled_logits(hidden, columns, options)
            return _block_sums(z, tokens - start, skipped, start, unembedding, options)[0]

        def add_block(k: Array, sums: Sums) -> Sums:
            block = of_block(k)
            maximum = jnp.maximum(sums.maximum, block.maximum)
            _, *left = lower(sums, maximum)
            _, *right = lower(block, maximum)
            return Sums(maximum, *(a + b for a, b in zip(left, right, strict=True)))

        return jax.lax.fori_loop(1, num_entries, add_block, of_block(0)), None

    if num_rows == 1:
        found = of_rows(hidden, tokens)
    else:
        hidden_RCE = _blocked(hidden, num_rows, count)
        tokens_RC = _blocked(tokens, num_rows, count)

        def of_index(c: Array) -> tuple[Sums, Array | None]:
            return of_rows(_index(hidden_RCE, c), _index(tokens_RC, c))

        blocks = _mapped(of_index, num_rows, _some_blocks(count, N, num_rows))
        found = jax.tree.map(lambda each: _unblocked(each.swapaxes(0, 1), N, count), blocks)
    sums, slopes = found
    return over_shards(sums, options.axis_name), slopes


def _mapped(
    of_index: Callable[[Array], Any], num_blocks: int, some: Array | int
) -> Any:  # leaves [num_blocks, …]
    """Map the first `some` blocks, with ones in place of the results of the others."""
    if isinstance(some, int):
        return jax.lax.map(of_index, jnp.arange(num_blocks))
    shapes = jax.eval_shape(of_index, some)
    start = jax.tree.map(lambda each: jnp.ones((num_blocks, *each.shape), each.dtype), shapes)

    def put(c: Array, found: Any) -> Any:
        return jax.tree.map(lambda all_, one: all_.at[c].set(one), found, of_index(c))

    return jax.lax.fori_loop(0, some, put, start)


def _block_sums(
    z: Array,  # f32[R, entries], scaled logits
    tokens: Array,  # i32[R], counted from the first column
    skipped: Array | int,  # leading columns that an earlier block had
    start: Array | int,  # the first column, among those held here
    unembedding: Array,  # that is held here
    options: Options,
) -> tuple[Sums, Array]:
    """Sums over one block, and the exponentials that they are sums of."""
    entries = z.shape[1]
    if not isinstance(skipped, int):
        z = jnp.where(jnp.arange(entries)[None, :] >= skipped, z, _LOWEST)
    maximum = z.max(axis=-1)
    d = z - maximum[:, None]
    e = jnp.exp(d)
    here = (tokens >= skipped) & (tokens < entries)
    at = jnp.clip(tokens, 0, entries - 1)[:, None]
    selected = jnp.where(here, jnp.take_along_axis(z, at, axis=1)[:, 0], 0.0)
    held = unembedding.shape[0 if options.transposed else 1]
    masses = masses_of(e, tokens, start, held, options)
    return Sums(maximum, e.sum(axis=-1), (e * d).sum(axis=-1), selected, masses), e


def _block_slopes(
    hidden: Array,  # [R, E]
    unembedding: Array,
    tokens: Array,  # i32[R]
    options: Options,
) -> tuple[Sums, Array]:
    """Sums over whole rows, and the derivative of each token's log-probability to its row."""
    z = scaled_logits(hidden, unembedding, options)
    sums, e = _block_sums(z, tokens, 0, 0, unembedding, options)
    at_token = jnp.arange(z.shape[1])[None, :] == tokens[:, None]
    dz = (at_token - e / sums.total[:, None]) / options.temperature
    return sums, _to_rows(_uncapped(dz, z, options).astype(hidden.dtype), unembedding, options)


def _block_gradients(
    hidden: Array,  # [R, E]
    columns: Array,  # [E, entries], or [entries, E] if transposed
    rows: _Row,  # of R rows; tokens counted from the first column held here
    start: Array | int,  # of the columns among those held here
    skipped: Array | int,  # leading columns that an earlier block had
    options: Options,
) -> tuple[Array, Array]:  # f32[R, E], f32 of the shape of `columns`
    """Gradients of one block of logits.

    To a logit, the log-probability's is 1 at the token - p; the entropy's, -p (log p + entropy).
    """
    z = scaled_logits(hidden, columns, options)
    ids = jnp.arange(z.shape[1])[None, :]
    logp = z - rows.maximum[:, None] - rows.log_total[:, None]
    slope = rows.by_logprob[:, None] + rows.by_entropy[:, None] * (logp + rows.entropy[:, None])
    at_token = jnp.where(ids == (rows.tokens - start)[:, None], rows.by_logprob[:, None], 0.0)
    dz = _uncapped((at_token - jnp.exp(logp) * slope) / options.temperature, z, options)
    if not isinstance(skipped, int):
        dz = jnp.where(ids >= skipped, dz, 0.0)
    dz = dz.astype(hidden.dtype)
    left, right = (dz, hidden) if options.transposed else (hidden, dz)
    return _to_rows(dz, columns, options), float32_product(left.T, right)


def _uncapped(dz: Array, z: Array, options: Options) -> Array:
    """Convert the derivative to scaled logits z into that to logits before their cap."""
    if options.soft_cap is None:
        return dz
    return dz * (1 - jnp.square(z * (options.temperature / options.soft_cap)))


def _to_rows(dz: Array, columns: Array, options: Options) -> Array:  # f32[R, E]
    return float32_product(dz, columns if options.transposed else columns.T)


def _num_blocks(hidden: Array, unembedding: Array, options: Options) -> tuple[int, int]:
    return -(-hidden.shape[0] // options.rows), _num_entries(unembedding, options)


def _num_entries(unembedding: Array, options: Options) -> int:
    return -(-unembedding.shape[0 if options.transposed else 1] // options.entries)


def _some_blocks(count: Array | None, N: int, num_blocks: int) -> Array | int:
    """Number of blocks of N rows that have some of the first `count`."""
    return num_blocks if count is None else -(-count // -(-N // num_blocks))


def _columns(unembedding: Array, k: Array | int, options: Options) -> tuple[Array | int, Array]:
    """Block k of the vocabulary, moved left where it would reach over the end, and its start."""
    axis, entries = 0 if options.transposed else 1, options.entries
    V = unembedding.shape[axis]
    if entries == V:
        return 0, unembedding
    start = jnp.minimum(k * entries, V - entries)
    return start, jax.lax.dynamic_slice_in_dim(unembedding, start, entries, axis=axis)


def _blocked(values: Array, num_blocks: int, count: Array | None) -> Array:
    """Reshape [N, …] to [R, num_blocks, …], filled up with zeros; entry [:, c] is block c.

    Its rows are strided or, where only the first `count` are computed, consecutive.
    """
    N = values.shape[0]
    R = -(-N // num_blocks)
    padding = [(0, R * num_blocks - N)] + [(0, 0)] * (values.ndim - 1)
    values = jnp.pad(values, padding)
    if count is None:
        return values.reshape(R, num_blocks, *values.shape[1:])
    return values.reshape(num_blocks, R, *values.shape[1:]).swapaxes(0, 1)


def _unblocked(blocks: Array, N: int, count: Array | None) -> Array:
    """Invert `_blocked`."""
    if count is not None:
        blocks = blocks.swapaxes(0, 1)
    return blocks.reshape(-1, *blocks.shape[2:])[:N]


def _index(values: Array, c: Array) -> Array:
    return jax.lax.dynamic_index_in_dim(values, c, axis=1, keepdims=False)
