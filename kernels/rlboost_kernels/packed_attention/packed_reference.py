"""What attention over packed rows means, in dense JAX: the definition a kernel is held to."""

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.packed_attention.spans import RowSpans


def attend(
    q: Array,  # [B, T, H, D]
    k: Array,  # [B, T, K, D]
    v: Array,  # [B, T, K, D]
    spans: RowSpans,
    *,
    scale: float,
    soft_cap: float | None,
) -> Array:  # [B, T, H, D]
    """Softmax attention of each query to the keys that it sees, in float32."""
    (B, T, H, D), K = q.shape, k.shape[2]
    q_BTKGD = q.reshape(B, T, K, H // K, D).astype(jnp.float32)
    exact = jax.lax.Precision.HIGHEST
    scores = jnp.einsum("btkgd,bskd->bkgts", q_BTKGD, k.astype(jnp.float32), precision=exact)
    scores *= scale
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    place_T = jnp.arange(T)
    seen_BTS = (place_T[None, None, :] <= place_T[None, :, None]) & (
        place_T[None, None, :] >= spans.first[:, :, None]
    )
    weights = jax.nn.softmax(jnp.where(seen_BTS[:, None, None], scores, -jnp.inf), axis=-1)
    out = jnp.einsum("bkgts,bskd->btkgd", weights, v.astype(jnp.float32), precision=exact)
    return out.reshape(B, T, H, D).astype(q.dtype)
