"""What ragged paged attention means, in dense JAX: the definition the fast programs are held to.

Every row copies all pages of its sequence, so this costs T × M pages of memory. It is meant
for tests and small problems.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.attention.rows import row_sequences
from rlboost_kernels.precision import product_precision


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
    (T, H, D), (P, L, heads, _) = q.shape, kv_pages.shape
    K, M = heads // 2, page_indices.shape[1]
    sequence_T, visible_T = row_sequences(T, kv_lens, cu_q_lens, num_seqs)

    pages_TM = jnp.clip(page_indices[sequence_T], 0, P - 1)
    kv_TNKD = kv_pages[pages_TM].reshape(T, M * L, heads, D).astype(jnp.float32)
    q_TKGD = q.reshape(T, K, H // K, D).astype(jnp.float32)

    position_N = jnp.arange(M * L)
    held_TN = position_N[None, :] < visible_T[:, None]
    if sliding_window is not None:
        held_TN &= position_N[None, :] >= visible_T[:, None] - sliding_window

    k_TNKD = kv_TNKD[:, :, 0::2] * k_scale
    product = partial(jnp.einsum, precision=product_precision(jnp.float32))
    scores_TKGN = product("tkgd,tnkd->tkgn", q_TKGD, k_TNKD) * sm_scale
    if soft_cap is not None:
        scores_TKGN = soft_cap * jnp.tanh(scores_TKGN / soft_cap)
    # Finite, so that a row which sees nothing averages zeros below and is not NaN.
    scores_TKGN = jnp.where(held_TN[:, None, None, :], scores_TKGN, jnp.finfo(jnp.float32).min)
    weights_TKGN = jax.nn.softmax(scores_TKGN, axis=-1)
    # What a page holds past the end of its sequence may be anything, and 0 times NaN is NaN.
    v_TNKD = jnp.where(held_TN[:, :, None, None], kv_TNKD[:, :, 1::2] * v_scale, 0.0)
    out = product("tkgn,tnkd->tkgd", weights_TKGN, v_TNKD).reshape(T, H, D).astype(q.dtype)
    if not return_lse:
        return out, None
    scores_TKGN = jnp.where(held_TN[:, None, None, :], scores_TKGN, -jnp.inf)
    return out, jax.nn.logsumexp(scores_TKGN, axis=-1).reshape(T, H)
