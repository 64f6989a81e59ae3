"""Ragged paged attention as a loop over tiles of rows and blocks of keys, for any platform.

Rows are sorted by how far they see and taken `TILE_ROWS` at a time, so a tile walks only as many
blocks as its longest row needs. A block is `BLOCK_TOKENS` tokens at an absolute position of the
sequence; each row gathers its own. Softmax is accumulated block after block against a running
maximum.

That makes the bits of a row independent of everything around it. The inner program has the same
shapes whatever the number of rows, so the compiler and its libraries have nothing to choose by; a
block does not start where a prefill chunk happens to; and a block that a row does not see,
because another row of its tile does, changes nothing: the maximum stays, the correction is
exp(0) = 1 and the weights are 0.

Source: the running softmax of Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlboost_kernels.attention.rows import row_sequences
from rlboost_kernels.attention.validation import EIGHT_BITS
from rlboost_kernels.precision import product_precision
from rlboost_kernels.sharding import differ_like

TILE_ROWS = 16
BLOCK_TOKENS = 32  # or one page where that is more; 64 is slower on short sequences

# Types whose whole array XLA for CPU converts to a wider one before it gathers a part of it.
_CONVERTED = (*EIGHT_BITS, "bfloat16") if jax.__version_info__ < (0, 11) else EIGHT_BITS

# A finite stand-in for minus infinity: the difference of two is 0 and not NaN.
_MASKED = float(jnp.finfo(jnp.float32).min)


class _Softmax(NamedTuple):
    """The softmax of a tile's rows over the blocks so far."""

    maximum: Array  # [R, K, G], of the scores
    total: Array  # [R, K, G], of the weights exp(score - maximum)
    weighted: Array  # [R, K, G, D], of weights times values


def attend(
    q: Array,  # [T, H, D]
    kv_pages: Array,  # [P, L, 2*K, D]
    kv_lens: Array,  # i32[S]
    page_indices: Array,  # i32[S, M]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array,  # i32[1]
    *,
    sm_scale: float,
    sliding_window: int | None,
    soft_cap: float | None,
    k_scale: float,
    v_scale: float,
    return_lse: bool,
) -> tuple[Array, Array | None]:  # [T, H, D], f32[T, H]
    """Softmax attention of each row to positions 0 … its own, in float32."""
    (T, H, D), (P, L, heads, _), M = q.shape, kv_pages.shape, page_indices.shape[1]
    K = heads // 2
    pages_per_block = max(1, BLOCK_TOKENS // L)
    C = pages_per_block * L

    row_N, sequence_N, visible_N = _longest_first(*row_sequences(T, kv_lens, cu_q_lens, num_seqs))
    padding = -M % pages_per_block
    pages_SM = jnp.pad(jnp.clip(page_indices, 0, P - 1), ((0, 0), (0, padding)))

    gather: Callable[[Array, Array], tuple[Array, Array]] = _gather
    if str(kv_pages.dtype) in _CONVERTED:
        gather = partial(lax.platform_dependent, cpu=_gather_bits, default=_gather)

    def differing(x: Array) -> Array:
        return differ_like(x, q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)

    def attend_tile(tile: Array, results: tuple[Array, ...]) -> tuple[Array, ...]:
        take = partial(lax.dynamic_slice_in_dim, start_index=tile * TILE_ROWS, slice_size=TILE_ROWS)
        row_R, visible_R, pages_RM = take(row_N), take(visible_N), pages_SM[take(sequence_N)]
        q_RKGD = q.at[row_R].get(mode="clip").astype(jnp.float32).reshape(-1, K, H // K, D)
        q_RKGD = q_RKGD * (sm_scale * k_scale)
        first_R = jnp.zeros_like(visible_R)
        if sliding_window is not None:
            first_R = jnp.maximum(visible_R - sliding_window, 0)

        def attend_block(block: Array, softmax: _Softmax) -> _Softmax:
            pages = lax.dynamic_slice_in_dim(pages_RM, block * pages_per_block, pages_per_block, 1)
            k_RKCD, v_RKCD = gather(kv_pages, pages)
            position_1C = (block * C + jnp.arange(C, dtype=jnp.int32))[None, :]
            held_RC = (position_1C >= first_R[:, None]) & (position_1C < visible_R[:, None])
            scores_RKGC = _product("rkgd,rkcd->rkgc", q_RKGD, k_RKCD.astype(jnp.float32))
            if soft_cap is not None:
                scores_RKGC = soft_cap * jnp.tanh(scores_RKGC / soft_cap)
            return _accumulate(softmax, scores_RKGC, v_RKCD.astype(jnp.float32), held_RC)

        # Rows that see nothing come last, so they share a tile with rows that do or have none.
        start = jnp.min(jnp.where(visible_R > 0, first_R, M * L)) // C
        stop = (jnp.max(visible_R) + C - 1) // C
        empty = _Softmax(*map(differing, _empty(TILE_ROWS, K, H // K, D)))
        softmax = lax.fori_loop(start, stop, attend_block, empty)
        total = softmax.total[..., None]
        mean = jnp.where(total == 0, 0.0, softmax.weighted / total).reshape(-1, H, D)
        of_tile = [mean if v_scale == 1 else mean * v_scale]
        if return_lse:
            lse = jnp.where(softmax.total == 0, -jnp.inf, softmax.maximum + jnp.log(softmax.total))
            of_tile.append(lse.reshape(-1, H))
        return tuple(
            result.at[row_R].set(part, mode="drop", unique_indices=True)
            for result, part in zip(results, of_tile, strict=True)
        )

    num_tiles = (jnp.sum(visible_N > 0) + TILE_ROWS - 1) // TILE_ROWS
    results: tuple[Array, ...] = (jnp.zeros((T, H, D), jnp.float32),)
    if return_lse:
        results += (jnp.full((T, H), -jnp.inf, jnp.float32),)
    results = lax.fori_loop(0, num_tiles, attend_tile, tuple(map(differing, results)))
    return results[0].astype(q.dtype), results[1] if return_lse else None


def _longest_first(sequence_T: Array, visible_T: Array) -> tuple[Array, Array, Array]:
    """Sort rows by falling `visible_T`, filled up to whole tiles: index, sequence, visible.

    The rows added see nothing and have indices beyond T, each its own, so a scatter drops them.
    """
    T = visible_T.shape[0]
    order = jnp.argsort(-visible_T, stable=True).astype(jnp.int32)
    padding = (0, -T % TILE_ROWS)
    added = jnp.arange(T, T + padding[1], dtype=jnp.int32)
    return (
        jnp.concatenate([order, added]),
        jnp.pad(sequence_T[order], padding),
        jnp.pad(visible_T[order], padding),
    )


def _gather(kv_pages: Array, pages: Array) -> tuple[Array, Array]:
    """Gather a block's keys and values, [R, K, C, D] as stored; `pages` is [R, pages per block].

    Taking head by head gives the matrix products their layout without a second copy.
    """
    P, L, heads, D = kv_pages.shape
    token_RC = (pages[..., None] * L + jnp.arange(L, dtype=jnp.int32)[None, None, :]).reshape(
        len(pages), -1
    )
    key_RKC = token_RC[:, None, :] * heads + jnp.arange(0, heads, 2, dtype=jnp.int32)[None, :, None]
    vectors = kv_pages.reshape(P * L * heads, D)
    k, v = (vectors.at[key_RKC + odd].get(mode="promise_in_bounds") for odd in (0, 1))
    return k, v


def _gather_bits(kv_pages: Array, pages: Array) -> tuple[Array, Array]:
    """Gather the same as integers, so that no conversion happens."""
    # Together with what changes from block to block, or the compiler would see that the pool as
    # integers does not, and write all of it down before the loop.
    kv_pages, pages = lax.optimization_barrier((kv_pages, pages))
    integers = jnp.dtype(f"uint{8 * kv_pages.dtype.itemsize}")
    of_bits = partial(lax.bitcast_convert_type, new_dtype=kv_pages.dtype)
    k, v = map(of_bits, _gather(lax.bitcast_convert_type(kv_pages, integers), pages))
    return k, v


def _empty(R: int, K: int, G: int, D: int) -> _Softmax:
    return _Softmax(
        maximum=jnp.full((R, K, G), _MASKED, jnp.float32),
        total=jnp.zeros((R, K, G), jnp.float32),
        weighted=jnp.zeros((R, K, G, D), jnp.float32),
    )


def _product(axes: str, left: Array, right: Array) -> Array:
    """Multiply float32 factors without rounding them."""
    return jnp.einsum(axes, left, right, precision=product_precision(jnp.float32))


def _accumulate(softmax: _Softmax, scores: Array, v: Array, held: Array) -> _Softmax:
    """Add one block: `scores` [R, K, G, C], `v` [R, K, C, D], `held` [R, C]."""
    in_row = held[:, None, None, :]
    scores = jnp.where(in_row, scores, _MASKED)
    maximum = jnp.maximum(softmax.maximum, scores.max(-1))
    correction = jnp.exp(softmax.maximum - maximum)
    weights = jnp.where(in_row, jnp.exp(scores - maximum[..., None]), 0.0)
    # What a page holds past the end of its sequence may be anything, and 0 times NaN is NaN.
    v = jnp.where(held[:, None, :, None], v, 0.0)
    return _Softmax(
        maximum=maximum,
        total=softmax.total * correction + weights.sum(-1),
        weighted=softmax.weighted * correction[..., None] + _product("rkgc,rkcd->rkgd", weights, v),
    )
