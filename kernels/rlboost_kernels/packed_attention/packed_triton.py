"""Attention over packed rows in Pallas Triton, forwards and backwards.

A program has a block of queries and one head, and goes through the blocks of keys that any of them
sees; where all of them see all of a block, it is not masked. The softmax is put together with a
running maximum and sum. Backwards the scores are computed again from the log of that sum, by two
kernels: one has a block of queries and adds up their gradient, the other a block of keys and adds
up that of keys and values, head by head of the queries. Nothing is added to memory that another
program adds to, so that equal arguments give equal bits; the price is two products more than the
five that a kernel with atomic additions makes.

Source: Dao 2023, arXiv:2307.08691, algorithms 1 and 2.
"""

import math
import warnings
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.experimental import pallas as pl

from rlboost_kernels.packed_attention.spans import RowSpans, padded

# We know; said by jax 0.11 and later while a program is lowered.
warnings.filterwarnings("ignore", "The Pallas Triton backend is deprecated", DeprecationWarning)

HEAD_DIMS = (16, 32, 64, 128, 256)
# Names of the kernels, and how many products each makes of the heads of two tokens.
FORWARD = "packed_attention_forward"
QUERY_GRADIENTS, KEY_GRADIENTS = (
    "packed_attention_backward_queries",
    "packed_attention_backward_keys",
)
PRODUCTS = {FORWARD: 2, QUERY_GRADIENTS: 3, KEY_GRADIENTS: 4}

_MASKED = -1e30  # a finite stand-in for minus infinity: the difference of two is 0 and not NaN
_LOG2_E = math.log2(math.e)

_Ref = Any  # a reference to memory of the device, as Pallas has them


class Tile(NamedTuple):
    """Block sizes and launch parameters of one program."""

    queries: int  # tokens of a block
    keys: int
    warps: int
    stages: int  # blocks under way from memory


class Tiles(NamedTuple):
    """Tiles of all three kernels, whose blocks divide `tokens`."""

    forward: Tile
    queries: Tile
    keys: Tile

    @property
    def tokens(self) -> int:
        """Number of tokens that a row's length is made a multiple of."""
        return max(max(tile.queries, tile.keys) for tile in self)


# By the head's width. None of these spills a register on an H100 (`benchmarks/h100`).
_TILES = {
    64: Tiles(Tile(128, 64, 4, 3), Tile(128, 64, 8, 3), Tile(64, 128, 8, 3)),
    128: Tiles(Tile(128, 64, 8, 3), Tile(128, 64, 8, 2), Tile(64, 128, 8, 2)),
    256: Tiles(Tile(64, 32, 4, 2), Tile(64, 64, 8, 2), Tile(32, 64, 8, 2)),
}
# The same for capped scores, whose hyperbolic tangent takes registers.
_TILES_CAPPED = {
    64: _TILES[64],
    128: _TILES[128]._replace(keys=Tile(32, 128, 8, 2)),
    256: _TILES[256]._replace(queries=Tile(64, 32, 8, 2), keys=Tile(32, 32, 8, 2)),
}
_TILES_FLOAT32 = Tiles(*[Tile(16, 16, 4, 1)] * 3)  # multiplied without tensor cores; spills


class Scores(NamedTuple):
    scale: float
    soft_cap: float | None


def tiles_of(dtype: Any, head_dim: int, scores: Scores) -> Tiles:
    if jnp.dtype(dtype) == jnp.float32:
        return _TILES_FLOAT32
    return (_TILES if scores.soft_cap is None else _TILES_CAPPED)[max(head_dim, 64)]


def why_not(dtype: Any, head_dim: int) -> str:
    """Say why heads of this kind cannot run, or ""; whether there is a device is not asked."""
    if missing := _missing():
        return missing
    if jnp.dtype(dtype) not in (jnp.bfloat16, jnp.float16, jnp.float32):
        return f"heads have type {jnp.dtype(dtype)}; it takes bfloat16, float16 and float32"
    if head_dim not in HEAD_DIMS:
        return f"head dim is {head_dim}; it takes {', '.join(map(str, HEAD_DIMS))}"
    return ""


def forward(
    q: Array,  # [B, T, H, D]
    k: Array,  # [B, T, K, D]
    v: Array,  # [B, T, K, D]
    spans: RowSpans,
    scores: Scores,
    *,
    tiles: Tiles | None = None,
    interpret: bool = False,
) -> tuple[Array, Array]:  # [B, T, H, D], f32[B, H, T]
    """Compute attention, and the binary logarithm of each query's sum of weights."""
    (B, T, H, D), K = q.shape, k.shape[2]
    tiles = tiles or tiles_of(q.dtype, D, scores)
    q, k, v, spans, length = _filled_up(tiles, q, k, v, spans)
    tile = tiles.forward
    out, lse = _call(
        partial(_attend, tile=tile, group=H // K, scores=scores),
        FORWARD,
        tile,
        (length // tile.queries, H, B),
        [(q.shape, q.dtype), ((B, H, length), jnp.float32)],
        interpret,
    )(spans.first, q, k, v)
    return out[:, :T], lse[:, :, :T]


def backward(
    q: Array,  # [B, T, H, D]
    k: Array,  # [B, T, K, D]
    v: Array,  # [B, T, K, D]
    spans: RowSpans,
    out: Array,  # [B, T, H, D]
    lse: Array,  # f32[B, H, T]
    upstream: Array,  # [B, T, H, D]
    scores: Scores,
    *,
    tiles: Tiles | None = None,
    interpret: bool = False,
) -> tuple[Array, Array, Array]:
    """Compute gradients of q, k and v, where `out` and `lse` are what `forward` returned."""
    (B, T, H, D), K = q.shape, k.shape[2]
    tiles = tiles or tiles_of(q.dtype, D, scores)
    means = (out.astype(jnp.float32) * upstream.astype(jnp.float32)).sum(axis=-1)
    means = means.transpose(0, 2, 1)
    upstream = upstream.astype(q.dtype)
    length = -(-T // tiles.tokens) * tiles.tokens
    if length != T:
        upstream = jnp.pad(upstream, ((0, 0), (0, length - T), (0, 0), (0, 0)))
        lse, means = (jnp.pad(x, ((0, 0), (0, 0), (0, length - T))) for x in (lse, means))
    q, k, v, spans, length = _filled_up(tiles, q, k, v, spans)
    tile = tiles.queries
    dq = _call(
        partial(_query_gradients, tile=tile, group=H // K, scores=scores),
        QUERY_GRADIENTS,
        tile,
        (length // tile.queries, H, B),
        [(q.shape, q.dtype)],
        interpret,
    )(spans.first, q, k, v, upstream, lse, means)[0]
    tile = tiles.keys
    # Of each query head by itself: so many programs keep the device busy, and none adds to what
    # another has.
    sums = (q.shape, jnp.float32)
    dk, dv = _call(
        partial(_key_gradients, tile=tile, group=H // K, scores=scores),
        KEY_GRADIENTS,
        tile,
        (length // tile.keys, H, B),
        [sums, sums],
        interpret,
    )(spans.last, q, k, v, upstream, lse, means)
    dk, dv = (x.reshape(B, length, K, H // K, D).sum(axis=3).astype(k.dtype) for x in (dk, dv))
    return dq[:, :T], dk[:, :T], dv[:, :T]


def _filled_up(
    tiles: Tiles, q: Array, k: Array, v: Array, spans: RowSpans
) -> tuple[Array, Array, Array, RowSpans, int]:
    """Pad rows to a length that all blocks divide; return also the length."""
    T = q.shape[1]
    length = -(-T // tiles.tokens) * tiles.tokens
    if length != T:
        q, k, v = (jnp.pad(x, ((0, 0), (0, length - T), (0, 0), (0, 0))) for x in (q, k, v))
    return q, k, v, padded(spans, length), length


def _call(
    kernel: Any,
    name: str,
    tile: Tile,
    grid: tuple[int, ...],
    outputs: list[tuple[tuple[int, ...], Any]],
    interpret: bool,
) -> Any:
    return pl.pallas_call(
        kernel,
        grid=grid,
        out_shape=[jax.ShapeDtypeStruct(*output) for output in outputs],
        compiler_params=_params(num_warps=tile.warps, num_stages=tile.stages),
        interpret=interpret,
        name=name,
    )


def _attend(
    first: _Ref,  # i32[B, T]
    q: _Ref,  # [B, T, H, D]
    k: _Ref,  # [B, T, K, D]
    v: _Ref,
    out: _Ref,  # [B, T, H, D]
    lse: _Ref,  # f32[B, H, T]
    *,
    tile: Tile,
    group: int,
    scores: Scores,
) -> None:
    """Compute one block of queries of one head; those that see most begin first."""
    b, h = pl.program_id(2), pl.program_id(1)
    at = (pl.num_programs(0) - 1 - pl.program_id(0)) * tile.queries
    rows, head = pl.ds(at, tile.queries), lax.div(h, group)
    place_Q, first_Q = at + jnp.arange(tile.queries), first[b, rows]
    q_QD = q[b, rows, h, :]

    def add(masked: bool, block: Array, softmax: tuple[Array, ...]) -> tuple[Array, ...]:
        maximum_Q, total_Q, weighted_QD = softmax
        columns = pl.ds(block * tile.keys, tile.keys)
        score_QS = _scores(_product(q_QD, k[b, columns, head, :].T), scores)
        if masked:
            place_S = block * tile.keys + jnp.arange(tile.keys)
            seen_QS = place_S[None, :] <= place_Q[:, None]
            seen_QS &= place_S[None, :] >= first_Q[:, None]
            score_QS = jnp.where(seen_QS, score_QS, _MASKED)
        higher_Q = jnp.maximum(maximum_Q, score_QS.max(axis=1))
        weight_QS = jnp.exp2(score_QS - higher_Q[:, None])
        if masked:  # a row that sees nothing so far has no maximum to be below of
            weight_QS = jnp.where(seen_QS, weight_QS, 0.0)
        fade_Q = jnp.exp2(maximum_Q - higher_Q)
        total_Q = total_Q * fade_Q + weight_QS.sum(axis=1)
        added_QD = _product(weight_QS.astype(v.dtype), v[b, columns, head, :])
        return higher_Q, total_Q, weighted_QD * fade_Q[:, None] + added_QD

    nothing = (
        jnp.full((tile.queries,), _MASKED, jnp.float32),
        jnp.zeros((tile.queries,), jnp.float32),
        jnp.zeros(q_QD.shape, jnp.float32),
    )
    maximum_Q, total_Q, weighted_QD = _over_blocks(add, nothing, _key_blocks(first, b, at, tile))
    out[b, rows, h, :] = (weighted_QD / total_Q[:, None]).astype(out.dtype)
    lse[b, h, rows] = maximum_Q + jnp.log2(total_Q)


def _query_gradients(
    first: _Ref,  # i32[B, T]
    q: _Ref,  # [B, T, H, D]
    k: _Ref,  # [B, T, K, D]
    v: _Ref,
    upstream: _Ref,  # [B, T, H, D]
    lse: _Ref,  # f32[B, H, T]
    means: _Ref,  # f32[B, H, T], of the gradients of a row's weights
    dq: _Ref,  # [B, T, H, D]
    *,
    tile: Tile,
    group: int,
    scores: Scores,
) -> None:
    b, h = pl.program_id(2), pl.program_id(1)
    at = (pl.num_programs(0) - 1 - pl.program_id(0)) * tile.queries
    rows, head = pl.ds(at, tile.queries), lax.div(h, group)
    place_Q, first_Q = at + jnp.arange(tile.queries), first[b, rows]
    q_QD, up_QD = q[b, rows, h, :], upstream[b, rows, h, :]
    lse_Q, mean_Q = lse[b, h, rows], means[b, h, rows]

    def add(masked: bool, block: Array, dq_QD: Array) -> Array:
        columns = pl.ds(block * tile.keys, tile.keys)
        k_SD = k[b, columns, head, :]
        score_QS = _scores(_product(q_QD, k_SD.T), scores)
        weight_QS = jnp.exp2(score_QS - lse_Q[:, None])
        if masked:
            place_S = block * tile.keys + jnp.arange(tile.keys)
            seen_QS = place_S[None, :] <= place_Q[:, None]
            seen_QS &= place_S[None, :] >= first_Q[:, None]
            weight_QS = jnp.where(seen_QS, weight_QS, 0.0)
        slope_QS = _product(up_QD, v[b, columns, head, :].T) - mean_Q[:, None]
        slope_QS = _slopes(weight_QS * slope_QS, score_QS, scores)
        return dq_QD + _product(slope_QS.astype(k.dtype), k_SD)

    zeros = jnp.zeros(q_QD.shape, jnp.float32)
    dq_QD = _over_blocks(add, zeros, _key_blocks(first, b, at, tile))
    dq[b, rows, h, :] = (dq_QD * scores.scale).astype(dq.dtype)


def _key_gradients(
    last: _Ref,  # i32[B, T]
    q: _Ref,  # [B, T, H, D]
    k: _Ref,  # [B, T, K, D]
    v: _Ref,
    upstream: _Ref,  # [B, T, H, D]
    lse: _Ref,  # f32[B, H, T]
    means: _Ref,  # f32[B, H, T]
    dk: _Ref,  # f32[B, T, H, D]
    dv: _Ref,
    *,
    tile: Tile,
    group: int,
    scores: Scores,
) -> None:
    """Compute what one head of queries adds to the gradients of a block of keys."""
    b, h, at = pl.program_id(2), pl.program_id(1), pl.program_id(0) * tile.keys
    columns, head = pl.ds(at, tile.keys), lax.div(h, group)
    place_S, last_S = at + jnp.arange(tile.keys), last[b, columns]
    k_SD, v_SD = k[b, columns, head, :], v[b, columns, head, :]

    def add(masked: bool, block: Array, gradients: tuple[Array, Array]) -> tuple[Array, Array]:
        dk_SD, dv_SD = gradients
        rows = pl.ds(block * tile.queries, tile.queries)
        q_QD, up_QD = q[b, rows, h, :], upstream[b, rows, h, :]
        score_SQ = _scores(_product(k_SD, q_QD.T), scores)
        weight_SQ = jnp.exp2(score_SQ - lse[b, h, rows][None, :])
        if masked:
            place_Q = block * tile.queries + jnp.arange(tile.queries)
            seen_SQ = place_Q[None, :] >= place_S[:, None]
            seen_SQ &= place_Q[None, :] <= last_S[:, None]
            weight_SQ = jnp.where(seen_SQ, weight_SQ, 0.0)
        dv_SD += _product(weight_SQ.astype(v.dtype), up_QD)
        slope_SQ = _product(v_SD, up_QD.T) - means[b, h, rows][None, :]
        slope_SQ = _slopes(weight_SQ * slope_SQ, score_SQ, scores)
        return dk_SD + _product(slope_SQ.astype(q.dtype), q_QD), dv_SD

    zeros = jnp.zeros(k_SD.shape, jnp.float32)
    dk_SD, dv_SD = _over_blocks(add, (zeros, zeros), _query_blocks(last, b, at, tile))
    dk[b, columns, h, :] = dk_SD * scores.scale
    dv[b, columns, h, :] = dv_SD


class _Blocks(NamedTuple):
    """Ranges of blocks, half-open: those from `whole_first` to `whole_stop` need no mask."""

    first: Array
    whole_first: Array
    whole_stop: Array
    stop: Array


def _over_blocks(add: Any, start: Any, blocks: _Blocks) -> Any:
    """Apply `add(masked, block, sums)` to block after block, in ascending order."""
    sums = lax.fori_loop(blocks.first, blocks.whole_first, partial(add, True), start)
    sums = lax.fori_loop(blocks.whole_first, blocks.whole_stop, partial(add, False), sums)
    return lax.fori_loop(blocks.whole_stop, blocks.stop, partial(add, True), sums)


def _key_blocks(first: _Ref, b: Array, at: Array, tile: Tile) -> _Blocks:
    """Blocks of keys that the block of queries which begins at `at` sees."""
    begin, stop = first[b, at], at + tile.queries
    of_last = first[b, stop - 1]  # from here on, all of the block see a key that is not after them
    return _ordered(
        lax.div(begin, tile.keys),
        pl.cdiv(of_last, tile.keys),
        lax.div(at + 1, tile.keys),
        pl.cdiv(stop, tile.keys),
    )


def _query_blocks(last: _Ref, b: Array, at: Array, tile: Tile) -> _Blocks:
    """Blocks of queries that see the block of keys which begins at `at`."""
    newest = at + tile.keys - 1
    return _ordered(
        lax.div(at, tile.queries),
        pl.cdiv(newest, tile.queries),
        lax.div(last[b, at] + 1, tile.queries),
        lax.div(last[b, newest], tile.queries) + 1,
    )


def _ordered(first: Array, whole_first: Array, whole_stop: Array, stop: Array) -> _Blocks:
    whole_first = jnp.minimum(whole_first, stop)
    return _Blocks(first, whole_first, jnp.clip(whole_stop, whole_first, stop), stop)


def _product(a: Array, b: Array) -> Array:
    """Multiply with float32 sums, and all digits of float32 factors."""
    precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
    return jnp.dot(a, b, precision=precision, preferred_element_type=jnp.float32)


def _scores(products: Array, scores: Scores) -> Array:
    """Compute scores in units of ln 2, which spares exp2 a product."""
    if scores.soft_cap is None:
        return products * (scores.scale * _LOG2_E)
    return jnp.tanh(products * (scores.scale / scores.soft_cap)) * (scores.soft_cap * _LOG2_E)


def _slopes(slopes: Array, score: Array, scores: Scores) -> Array:
    """Convert slopes of capped scores to slopes of products, but for the scale."""
    if scores.soft_cap is None:
        return slopes
    return slopes * (1 - jnp.square(score / (scores.soft_cap * _LOG2_E)))


def _params(**values: int) -> Any:
    """Make the backend's parameters; its slow import happens only here."""
    from jax.experimental.pallas import triton

    return triton.CompilerParams(**values)


def _missing() -> str:
    """Say why there is no backend; "" if there is one."""
    try:
        _params(num_warps=4, num_stages=1)
    except ImportError as error:
        return f"this jax has no Pallas Triton: {error}"
    return ""
