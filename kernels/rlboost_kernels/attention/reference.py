"""What ragged paged attention means, in dense JAX: the definition the fast programs are held to.

Every row copies all pages of its sequence, so this costs T × M pages of memory. It is meant
for tests and small problems.
"""

import jax.numpy as jnp
from jax import Array

from rlboost_kernels.attention.rows import row_sequences


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
) -> Array:  # [T, H, D]
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
    held_T1N = held_TN[:, None, :]

    # Products are summed one row at a time rather than by a matrix multiplication, whose
    # summation order the library may choose by the number of rows.
    heads_out = []
    for g in range(H // K):
        k_TNKD = kv_TNKD[:, :, 0::2]
        scores_TKN = (q_TKGD[:, None, :, g] * k_TNKD).sum(-1).swapaxes(1, 2) * sm_scale
        if soft_cap is not None:
            scores_TKN = soft_cap * jnp.tanh(scores_TKN / soft_cap)
        scores_TKN = jnp.where(held_T1N, scores_TKN, jnp.finfo(jnp.float32).min)
        weights_TKN = jnp.where(
            held_T1N, jnp.exp(scores_TKN - scores_TKN.max(-1, keepdims=True)), 0.0
        )
        # A value that is not held may be anything, NaN included; zero times NaN is NaN.
        v_TNKD = jnp.where(held_TN[:, :, None, None], kv_TNKD[:, :, 1::2], 0.0)
        weights_TNK1 = weights_TKN.swapaxes(1, 2)[..., None]
        sum_TKD = (weights_TNK1 * v_TNKD).sum(1)
        total_TK1 = weights_TKN.sum(-1)[..., None]
        heads_out.append(jnp.where(total_TK1 > 0, sum_TKD / total_TK1, 0.0))
    return jnp.stack(heads_out, axis=2).reshape(T, H, D).astype(q.dtype)
