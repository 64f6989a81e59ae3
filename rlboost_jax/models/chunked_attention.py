"""Attention over packed rows in memory that grows with a row's length, not with its square.

Queries and keys meet block by block. Nothing of a pair of blocks outlives it: the softmax is put
together with a running maximum and sum, and the backward pass computes the scores again from the
log of that sum. Blocks in which no query sees a key (of sequences before it in the row, before the
window, after itself) are passed over, so that the work is that of the sequences and not of the
rows they are packed in.

Source: Dao et al. 2022, arXiv:2205.14135, algorithms 1 and 4; Rabe and Staats 2021,
arXiv:2112.05682, for doing so without a kernel.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels import product_precision

from rlboost_jax.settings.memory_estimates import ATTENTION_BLOCKS, MOST_BLOCK

_LEAST = -1e30  # the running maximum before the first score


class Form(NamedTuple):
    """Attention parameters common to all layers of a model."""

    scale: float  # of the scores
    soft_cap: float | None
    window: int  # of layers that have one
    block: int | None = None  # tokens of a block of `attend_chunked`; None: as suits the platform


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def attend_chunked(
    form: Form,
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    segments: Int[Array, "B T"],
    local: Bool[Array, ""] | None,
) -> Float[Array, "N H D"]:
    """Attend block by block: the values of `attention.attend_dense`, up to the order of sums.

    Args:
        segments: N = B × T tokens; those of one sequence are neighbours in a row.
        local: whether the window of `form` is for this layer; None: it is.
    """
    return _forward(form, q, k, v, segments, local)[0]


class _Rows(NamedTuple):
    """L blocks of b tokens of B rows; the last may be filled up with a segment of its own."""

    places: Int[Array, "L b"]  # of tokens in their row
    segments: Int[Array, "L B b"]
    first: Int[Array, " L"]  # block of the first key that any query of the block sees


def _rows(form: Form, segments: Int[Array, "B T"], local: Bool[Array, ""] | None) -> _Rows:
    B, T = segments.shape
    size = min(form.block or ATTENTION_BLOCKS.get(jax.default_backend(), MOST_BLOCK), T)
    padding = -T % size
    place_T = jnp.arange(T + padding, dtype=jnp.int32)
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start_BT = jax.lax.cummax(jnp.where(begins, place_T[None, :T], 0), axis=1)
    first = start_BT[:, ::size].min(axis=0)
    if form.window:
        in_window = jnp.maximum(first, place_T[::size] - form.window + 1)
        first = in_window if local is None else jnp.where(local, in_window, first)
    padded = jnp.pad(segments, ((0, 0), (0, padding)), constant_values=-1)
    return _Rows(
        places=place_T.reshape(-1, size),
        segments=padded.reshape(B, -1, size).transpose(1, 0, 2),
        first=first // size,
    )


def _blocks(x: Float[Array, "N _ D"], rows: _Rows, T: int, K: int) -> Float[Array, "L B K _ b D"]:
    """Split tokens into blocks, and heads by the key head that they attend with."""
    (L, B, size), (_, heads, D) = rows.segments.shape, x.shape
    x = jnp.pad(x.reshape(B, T, heads, D), ((0, 0), (0, L * size - T), (0, 0), (0, 0)))
    return x.reshape(B, L, size, K, heads // K, D).transpose(1, 0, 3, 4, 2, 5)


def _tokens(x: Float[Array, "L B K G b D"], T: int) -> Float[Array, "N H D"]:
    """The inverse of `_blocks`."""
    L, B, K, G, size, D = x.shape
    x = x.transpose(1, 0, 4, 2, 3, 5).reshape(B, L * size, K * G, D)
    return x[:, :T].reshape(B * T, K * G, D)


def _scores(
    form: Form,
    rows: _Rows,
    local: Bool[Array, ""] | None,
    q_BKGbD: Float[Array, "B K G b D"],
    k_BKbD: Float[Array, "B K b D"],
    i: Int[Array, ""],
    j: Int[Array, ""],
) -> tuple[Float[Array, "B K G b b"], Bool[Array, "B 1 1 b b"]]:
    """Scores between queries of block i and keys of block j, and which of them count."""
    scores = _product("bkgqd,bksd->bkgqs", q_BKGbD, k_BKbD)
    scores *= form.scale
    if form.soft_cap is not None:
        scores = form.soft_cap * jnp.tanh(scores / form.soft_cap)
    before = rows.places[i][:, None] - rows.places[j][None, :]
    seen = before >= 0
    if form.window:
        near = before < form.window
        seen &= near if local is None else near | ~local
    same = rows.segments[i][:, :, None] == rows.segments[j][:, None, :]
    return scores, (same & seen[None])[:, None, None]


def _sum(x: Array) -> Any:
    """Dtype in which products of x are summed."""
    return jnp.promote_types(x.dtype, jnp.float32)


def _product(axes: str, left: Array, right: Array) -> Array:
    """Product with operands and result unrounded."""
    precision = product_precision(left.dtype)
    product: Array = jnp.einsum(
        axes, left, right, precision=precision, preferred_element_type=_sum(left)
    )
    return product


def _forward(
    form: Form, q: Array, k: Array, v: Array, segments: Array, local: Array | None
) -> tuple[Array, tuple[Any, ...]]:
    T, K = segments.shape[1], k.shape[1]
    rows = _rows(form, segments, local)
    q_blocks, k_blocks, v_blocks = (_blocks(x, rows, T, K) for x in (q, k, v))
    k_blocks, v_blocks = k_blocks[:, :, :, 0], v_blocks[:, :, :, 0]

    def of_block(block: tuple[Array, Array]) -> tuple[Array, Array]:
        i, q_BKGbD = block

        def add(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            highest, total, out = carry
            scores, seen = _scores(form, rows, local, q_BKGbD, k_blocks[j], i, j)
            higher = jnp.maximum(highest, scores.max(axis=-1, where=seen, initial=_LEAST))
            parts = jnp.where(seen, jnp.exp(scores - higher[..., None]), 0.0)
            fade = jnp.exp(highest - higher)
            added = _product("bkgqs,bksd->bkgqd", parts.astype(v.dtype), v_blocks[j])
            total = total * fade + parts.sum(axis=-1)
            return higher, total, out * fade[..., None] + added

        zeros = jnp.zeros(q_BKGbD.shape, _sum(q))
        nothing = zeros[..., 0]
        highest, total, out = jax.lax.fori_loop(
            rows.first[i], i + 1, add, (nothing + _LEAST, nothing, zeros)
        )
        return (out / total[..., None]).astype(v.dtype), highest + jnp.log(total)

    indices = jnp.arange(len(rows.places), dtype=jnp.int32)
    out_blocks, log_totals = jax.lax.map(of_block, (indices, q_blocks))
    return _tokens(out_blocks, T), (q, k, v, segments, local, out_blocks, log_totals)


def _backward(
    form: Form, kept: tuple[Any, ...], upstream: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, segments, local, out_blocks, log_totals = kept
    T, K = segments.shape[1], k.shape[1]
    rows = _rows(form, segments, local)
    q_blocks, k_blocks, v_blocks, up_blocks = (_blocks(x, rows, T, K) for x in (q, k, v, upstream))
    k_blocks, v_blocks = k_blocks[:, :, :, 0], v_blocks[:, :, :, 0]
    exact = _sum(q)
    means = (up_blocks.astype(exact) * out_blocks.astype(exact)).sum(axis=-1)

    def of_block(
        gradients: tuple[Array, Array], block: tuple[Array, ...]
    ) -> tuple[tuple[Array, Array], Array]:
        i, q_BKGbD, up, log_total, mean = block

        def add(j: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            dq, dk, dv = carry
            scores, seen = _scores(form, rows, local, q_BKGbD, k_blocks[j], i, j)
            parts = jnp.where(seen, jnp.exp(scores - log_total[..., None]), 0.0)
            slopes = parts * (_product("bkgqd,bksd->bkgqs", up, v_blocks[j]) - mean[..., None])
            if form.soft_cap is not None:
                slopes *= 1 - jnp.square(scores / form.soft_cap)
            slopes = (slopes * form.scale).astype(q.dtype)
            dq += _product("bkgqs,bksd->bkgqd", slopes, k_blocks[j])
            dk = dk.at[j].add(_product("bkgqs,bkgqd->bksd", slopes, q_BKGbD))
            dv = dv.at[j].add(_product("bkgqs,bkgqd->bksd", parts.astype(v.dtype), up))
            return dq, dk, dv

        dq, *gradients_now = jax.lax.fori_loop(
            rows.first[i], i + 1, add, (jnp.zeros(q_BKGbD.shape, exact), *gradients)
        )
        return (gradients_now[0], gradients_now[1]), dq.astype(q.dtype)

    zeros = jnp.zeros(k_blocks.shape, exact)
    indices = jnp.arange(len(rows.places), dtype=jnp.int32)
    (dk, dv), dq = jax.lax.scan(
        of_block, (zeros, zeros), (indices, q_blocks, up_blocks, log_totals, means)
    )
    dk, dv = (_tokens(x[:, :, :, None].astype(k.dtype), T) for x in (dk, dv))
    return _tokens(dq, T), dk, dv, None, None


attend_chunked.defvjp(_forward, _backward)
