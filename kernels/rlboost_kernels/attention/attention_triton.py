"""Ragged paged attention in Pallas Triton, for GPUs that Mosaic is not for, while JAX has it.

Built like `attention_mosaic_gpu.py`: one kernel computes items (`tiles.py`), block by block of 64
tokens at absolute positions, and a second one merges the items of each row in ascending order. The
bits of a row depend on that row alone, for the same reasons. It takes more shapes, float32, whose
products are exact to float32, and pools of 8-bit numbers, which become of the type of `q` in
registers (exactly) and are multiplied as such.
"""

import math
import warnings
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from rlboost_kernels.attention import tiles
from rlboost_kernels.attention.rows import row_sequences
from rlboost_kernels.attention.validation import EIGHT_BITS
from rlboost_kernels.precision import product_precision
from rlboost_kernels.sharding import differ_like

try:
    from jax.experimental.pallas import triton as plgpu

    _MISSING = ""
except ImportError as error:
    _MISSING = f"this jax has no Pallas Triton: {error}"

# We know; said by jax 0.11 and later while a program is lowered.
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)

BLOCK = 64  # tokens
TILE_ROWS = {"bfloat16": 64, "float16": 64, "float32": 16}  # query heads times rows
PROGRAMS = 4 * 132  # side by side on an H100; any number gives the same bits

HEAD_DIMS = (16, 32, 64, 128, 256)

_MASKED = -1e30  # a finite stand-in for minus infinity: the difference of two is 0 and not NaN
_LOG2_E = math.log2(math.e)

_Ref = Any  # a reference to memory of the device, as Pallas has them


def why_not(q: Any, kv_pages: Any, *, interpret: bool = False) -> str:
    """Say why arguments of these shapes and types cannot run, or "" if they can.

    Whether there is a device is not asked.
    """
    D = q.shape[-1]
    if _MISSING:
        return _MISSING
    if q.dtype != kv_pages.dtype and str(kv_pages.dtype) not in EIGHT_BITS:
        return (
            f"q has type {q.dtype} and kv_pages {kv_pages.dtype}; "
            f"it takes equal ones and pools of {' and '.join(EIGHT_BITS)}"
        )
    if D not in HEAD_DIMS:
        return f"head dim is {D}; it takes {', '.join(map(str, HEAD_DIMS))}"
    return ""


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
    interpret: bool = False,
) -> tuple[Array, Array | None]:  # [T, H, D], f32[T, H]
    """Softmax attention of each row to positions 0 … its own, in float32."""
    if reason := why_not(q, kv_pages, interpret=interpret):
        raise NotImplementedError(f"implementation 'triton' cannot run this: {reason}")
    (T, H, D), (P, L, heads, _), M = q.shape, kv_pages.shape, page_indices.shape[1]
    tile_rows = TILE_ROWS[str(q.dtype)]
    parts = tiles.head_parts(H, heads // 2, most=tile_rows)
    key_heads = heads // 2 * parts
    G = H // key_heads
    arguments = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs = (
        differ_like(argument, *arguments) for argument in arguments
    )
    metadata = (kv_lens, cu_q_lens, num_seqs)
    cut = tiles.Cut(M * L, sliding_window)
    items = tiles.work_items(T, *metadata, tile_rows // G, cut)
    splits = tiles.row_splits(row_sequences(T, *metadata)[1], cut)

    programs = min(len(items.table) * key_heads, 2 if interpret else PROGRAMS)
    rows = (tiles.num_splits(M, L), key_heads, T * G)
    scores = partial(_scores, factor=sm_scale * k_scale, soft_cap=soft_cap)
    sums = _call(
        partial(
            _attend_items,
            key_heads=key_heads,
            parts=parts,
            group=G,
            tile_rows=tile_rows,
            programs=programs,
            window=sliding_window,
            scores=scores,
        ),
        (programs,),
        [(rows, jnp.float32), (rows, jnp.float32), ((*rows, D), jnp.float32)],
        interpret,
    )(
        items.table,
        items.total,
        jnp.clip(page_indices, 0, P - 1),
        tiles.rows_by_key_head(q, key_heads),
        kv_pages,
    )
    out, lse = _call(
        partial(_merge_splits, v_scale=v_scale),
        (T, key_heads, G),
        [((T, key_heads, G, D), q.dtype), ((T, key_heads, G), jnp.float32)],
        interpret,
    )(splits.first, splits.stop, *sums)
    return out.reshape(T, H, D), lse.reshape(T, H) if return_lse else None


def _call(
    kernel: Any, grid: tuple[int, ...], outputs: list[tuple[tuple[int, ...], Any]], interpret: bool
) -> Any:
    def call(*arguments: Array) -> Any:
        manual = jax.typeof(arguments[0]).manual_axis_type
        return pl.pallas_call(
            kernel,
            grid=grid,
            out_shape=[
                jax.ShapeDtypeStruct(*output, manual_axis_type=manual) for output in outputs
            ],
            compiler_params=plgpu.CompilerParams(num_warps=4, num_stages=2),
            interpret=interpret,
        )(*arguments)

    return call


def _attend_items(
    table: _Ref,  # i32[items, 5]
    total: _Ref,  # i32[1]
    pages: _Ref,  # i32[S, M]
    q: _Ref,  # [K, T*G, D]
    kv: _Ref,  # [P, L, 2*K, D]
    maxima: _Ref,  # f32[splits, K, T*G]
    totals: _Ref,  # f32[splits, K, T*G]
    weighted: _Ref,  # f32[splits, K, T*G, D]
    *,
    key_heads: int,
    parts: int,
    group: int,
    tile_rows: int,
    programs: int,
    window: int | None,
    scores: Any,
) -> None:
    """Compute, item after item, softmax over the tokens of one split for a tile's rows."""
    G, D, L, M = group, q.shape[2], kv.shape[1], pages.shape[1]
    precision = product_precision(q.dtype)
    dot = partial(jnp.dot, precision=precision, preferred_element_type=jnp.float32)
    program = pl.program_id(0)

    def run_item(turn: Array, _: None) -> None:
        number = program + turn * programs
        head = lax.rem(number, key_heads)
        item = tiles.Item(*(table[lax.div(number, key_heads), column] for column in range(5)))
        row_R = jnp.arange(tile_rows)
        own_R = row_R < item.num_rows * G
        position_R = item.position + row_R // G
        own_RD = jnp.broadcast_to(own_R[:, None], (tile_rows, D))
        rows = pl.ds(item.row * G, tile_rows)
        q_RD = plgpu.load(q.at[head, rows], mask=own_RD, other=0.0)

        first_token, stop_token = jnp.int32(0), jnp.minimum(item.position + item.num_rows, M * L)
        if window is not None:
            first_token = jnp.maximum(item.position + 1 - window, 0)
        split_blocks = tiles.SPLIT_TOKENS // BLOCK
        first = jnp.maximum(lax.div(first_token, BLOCK), item.split * split_blocks)
        stop = jnp.minimum(lax.div(stop_token + BLOCK - 1, BLOCK), (item.split + 1) * split_blocks)

        def add_block(block: Array, softmax: tuple[Array, Array, Array]) -> tuple[Array, ...]:
            maximum_R, total_R, weighted_RD = softmax
            token_C = block * BLOCK + jnp.arange(BLOCK)
            held_C = (token_C >= first_token) & (token_C < stop_token)
            page_C = pages[item.sequence, jnp.minimum(token_C // L, M - 1)]
            k_CD, v_CD = (
                kv[page_C, token_C % L, head // parts * 2 + odd].astype(q.dtype) for odd in (0, 1)
            )
            # What a page holds where no row looks may be anything, and 0 times NaN is NaN.
            v_CD = jnp.where(held_C[:, None], v_CD, jnp.zeros_like(v_CD))
            seen_RC = token_C[None, :] <= position_R[:, None]
            if window is not None:
                seen_RC &= token_C[None, :] > position_R[:, None] - window
            score_RC = jnp.where(seen_RC, scores(dot(q_RD, k_CD.T)), _MASKED)
            new_maximum_R = jnp.maximum(maximum_R, score_RC.max(axis=1))
            correction_R = jnp.exp2(maximum_R - new_maximum_R)
            weight_RC = jnp.where(seen_RC, jnp.exp2(score_RC - new_maximum_R[:, None]), 0.0)
            total_R = total_R * correction_R + weight_RC.sum(axis=1)
            weighted_RD = weighted_RD * correction_R[:, None]
            return new_maximum_R, total_R, weighted_RD + dot(weight_RC.astype(v_CD.dtype), v_CD)

        nothing = (
            jnp.full((tile_rows,), _MASKED, jnp.float32),
            jnp.zeros((tile_rows,), jnp.float32),
            jnp.zeros((tile_rows, D), jnp.float32),
        )
        maximum_R, total_R, weighted_RD = lax.fori_loop(first, stop, add_block, nothing)
        plgpu.store(maxima.at[item.split, head, rows], maximum_R, mask=own_R)
        plgpu.store(totals.at[item.split, head, rows], total_R, mask=own_R)
        plgpu.store(weighted.at[item.split, head, rows], weighted_RD, mask=own_RD)

    last_turn = lax.div(total[0] * key_heads - program + (programs - 1), programs)
    lax.fori_loop(0, last_turn, run_item, None)


def _scores(products: Array, *, factor: float, soft_cap: float | None) -> Array:
    """Scores in units of ln 2, which spares exp2 a product."""
    if soft_cap is None:
        return products * (factor * _LOG2_E)
    return jnp.tanh(products * (factor / soft_cap)) * (soft_cap * _LOG2_E)


def _merge_splits(
    first_T: _Ref,
    stop_T: _Ref,
    maxima: _Ref,
    totals: _Ref,
    weighted: _Ref,
    out: _Ref,  # [T, K, G, D]
    lse: _Ref,  # f32[T, K, G]
    *,
    v_scale: float,
) -> None:
    """Attention of one row and query head, from the sums of the splits that it sees."""
    t, head, g = (pl.program_id(axis) for axis in range(3))
    first, stop, row = first_T[t], stop_T[t], t * out.shape[2] + g

    def larger(split: Array, maximum: Array) -> Array:
        return jnp.maximum(maximum, maxima[split, head, row])

    maximum = lax.fori_loop(first, stop, larger, jnp.float32(_MASKED))

    def add_split(split: Array, so_far: tuple[Array, Array]) -> tuple[Array, Array]:
        total, weighted_D = so_far
        correction = jnp.exp2(maxima[split, head, row] - maximum)
        total = total + totals[split, head, row] * correction
        return total, weighted_D + weighted[split, head, row] * correction

    nothing = (jnp.float32(0), jnp.zeros(out.shape[3:], jnp.float32))
    total, weighted_D = lax.fori_loop(first, stop, add_split, nothing)
    divisor = jnp.where(total == 0, 1.0, total)
    out[t, head, g] = (weighted_D * (v_scale / divisor)).astype(out.dtype)
    logarithm = (maximum + jnp.log2(divisor)) / _LOG2_E
    lse[t, head, g] = jnp.where(total == 0, -jnp.inf, logarithm)
