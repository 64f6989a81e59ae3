"""Attention over packed rows, for the learner.

Two ways, equal up to rounding. `dense` is one masked matrix product. `paged` computes the
same values with the engine's own kernel, block by block in the engine's order, so that the
learner's log-probabilities are those the engine sampled from, to the last rounding; its
gradient is that of `dense`.
"""

from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels import ragged_paged_attention

from rlboost_jax.models.decoder import Attend

MOST_PAGED_TOKENS: Final = 4096  # per batch; beyond it the kernel's own bookkeeping costs more
_MASKED = -1e30  # a score that weighs exactly 0 after the softmax and never makes a NaN


def row_attention(segments: Int[Array, "B T"], how: str) -> Attend:
    """An attention function for tokens that see their own segment up to their own place.

    Args:
        segments: which sequence each token of a row belongs to; those of one sequence are
            neighbours.
        how: "dense" or "paged".
    """
    attend = _attend_paged if how == "paged" else _attend_dense
    return lambda q, k, v: attend(q, k, v, segments)


def _attend_dense(
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    segments: Int[Array, "B T"],
) -> Float[Array, "N H D"]:
    """With float32 scores."""
    (N, H, D), K, (B, T) = q.shape, k.shape[1], segments.shape
    q_BKGTD = q.reshape(B, T, K, H // K, D).transpose(0, 2, 3, 1, 4)
    k_BKSD = k.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    v_BKSD = v.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    scores = jnp.einsum("bkgtd,bksd->bkgts", q_BKGTD, k_BKSD, preferred_element_type=jnp.float32)
    visible_BTS = _visible(segments)
    scores = jnp.where(visible_BTS[:, None, None], scores * D**-0.5, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out_BKGTD = jnp.einsum("bkgts,bksd->bkgtd", weights, v_BKSD)
    return out_BKGTD.transpose(0, 3, 1, 2, 4).reshape(N, H, D)


def _visible(segments: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Entry [b, t, s]: may token t of row b look at token s?"""
    T = segments.shape[1]
    causal = jnp.tril(jnp.ones((1, T, T), bool))
    return causal & (segments[:, :, None] == segments[:, None, :])


@jax.custom_vjp
def _attend_paged(
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    segments: Int[Array, "B T"],
) -> Float[Array, "N H D"]:
    """Every token as a sequence of its own that reads its segment from pages of one token."""
    (N, _, D), (B, T) = q.shape, segments.shape
    place_T = jnp.arange(T, dtype=jnp.int32)
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start_BT = jax.lax.cummax(jnp.where(begins, place_T[None], 0), axis=1)
    first_N = (jnp.arange(B, dtype=jnp.int32)[:, None] * T + start_BT).reshape(N)
    kv_pages = jnp.stack([k, v], axis=2).reshape(N, 1, -1, D)
    return ragged_paged_attention(
        q,
        kv_pages,
        (place_T[None] - start_BT + 1).reshape(N),
        jnp.minimum(first_N[:, None] + place_T[None], N - 1),
        jnp.arange(N + 1, dtype=jnp.int32),
        jnp.full((1,), N, jnp.int32),
    )


def _forward(q: Array, k: Array, v: Array, segments: Array) -> tuple[Array, tuple[Array, ...]]:
    return _attend_paged(q, k, v, segments), (q, k, v, segments)


def _backward(kept: tuple[Array, ...], cotangent: Array) -> tuple[Array, Array, Array, None]:
    q, k, v, segments = kept
    _, pull_back = jax.vjp(lambda q, k, v: _attend_dense(q, k, v, segments), q, k, v)
    return (*pull_back(cotangent), None)


_attend_paged.defvjp(_forward, _backward)
