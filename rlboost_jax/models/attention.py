"""Attention over packed rows, for the learner.

Ways that are equal up to rounding. `dense` is one masked matrix product, with a score for every
pair of tokens of a row. `chunked` makes the same scores block by block, and never has them all.
`paged` computes the same values with the engine's own kernel, block by block in the engine's order,
so that the learner's log-probabilities are those the engine sampled from, to the last rounding; its
gradient is that of one of the others. `triton` and `cudnn` are kernels for GPUs. `auto` is dense
for short rows; for long ones it is a kernel that takes the model and returns equal bits for equal
arguments, and chunked if there is none.

Layers that see all before them and layers that see a window may take turns, and the learner scans
over them with one program, so that the choice is an array: `paged` branches by it, all others mask.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, Mesh
from jaxtyping import Array, Bool, Float, Int
from rlboost_kernels import product_precision, ragged_paged_attention

from rlboost_jax.models.chunked_attention import Form, attend_chunked
from rlboost_jax.models.decoder import Attend, Local
from rlboost_jax.models.packed_attention import EQUAL_BITS, KERNELS, fused_attention, why_not
from rlboost_jax.settings.memory_estimates import MOST_DENSE_TOKENS
from rlboost_jax.settings.model_config import ModelConfig

MOST_PAGED_TOKENS: Final = 4096  # per batch; beyond it the kernel's own bookkeeping costs more
_MASKED = -1e30  # a score that weighs exactly 0 after the softmax and never makes a NaN


def row_attention(
    config: ModelConfig,
    segments: Int[Array, "B T"],
    how: str,
    mesh: Mesh | None = None,
    *,
    block: int | None = None,
) -> Callable[[Local], Attend]:
    """Build, for each kind of layer, an attention function for tokens of packed rows.

    A token sees those of its own segment up to its own place and, in a local layer, no more than
    `config.sliding_window` of them.

    Args:
        segments: which sequence each token of a row belongs to; those of one sequence are
            neighbours.
        how: "auto", "dense", "chunked", "paged", "triton" or "cudnn".
        mesh: over which rows and heads are divided; kernels have to know it.
        block: tokens of a block of the chunked form; None: as suits the platform.

    Raises:
        NotImplementedError: a kernel is named that cannot run the model here.
    """
    cap = config.attention_soft_cap or None
    form = Form(config.attention_scale, cap, config.sliding_window, block)
    how = chosen(config, how, segments.shape[1], mesh)
    ways: dict[str, Callable[..., Any]] = {
        "dense": attend_dense,
        "chunked": attend_chunked,
        "paged": _attend_paged,
    }
    kernel = next((kernel for kernel in KERNELS if kernel == how), None)
    if kernel is None:
        attend = ways[how]
    else:
        if reason := why_not(kernel, config, mesh, jax.default_backend()):
            raise NotImplementedError(f"learner.attention is {how!r}: {reason}; take 'auto'")
        fused = fused_attention(kernel, config.sliding_window, segments, mesh)
        attend = lambda form, q, k, v, _, local: fused(form, q, k, v, local)  # noqa: E731

    def of_layer(local: Local) -> Attend:
        if not isinstance(local, bool):
            return lambda q, k, v: attend(form, q, k, v, segments, local)
        of_one_kind = form if local else form._replace(window=0)
        return lambda q, k, v: attend(of_one_kind, q, k, v, segments, None)

    return of_layer


def chosen(
    config: ModelConfig,
    how: str,
    tokens: int,
    mesh: Mesh | AbstractMesh | None,
    platform: str | None = None,
) -> str:
    """Implementation that "auto" selects for rows of this length, or the one that is named.

    Args:
        platform: that it is for; None: JAX's own.
    """
    if how != "auto":
        return how
    if tokens <= MOST_DENSE_TOKENS:
        return "dense"
    platform = platform or jax.default_backend()
    if config.dtype == "float32":  # multiplied without tensor cores there; nobody trains so on GPUs
        return "chunked"
    fit = (kernel for kernel in EQUAL_BITS if not why_not(kernel, config, mesh, platform))
    return next(fit, "chunked")


def attend_dense(
    form: Form,
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    segments: Int[Array, "B T"],
    local: Bool[Array, ""] | None,
) -> Float[Array, "N H D"]:
    """Attend by dense masked products, with float32 scores."""
    (N, H, D), K, (B, T) = q.shape, k.shape[1], segments.shape
    q_BKGTD = q.reshape(B, T, K, H // K, D).transpose(0, 2, 3, 1, 4)
    k_BKSD = k.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    v_BKSD = v.reshape(B, T, K, D).transpose(0, 2, 1, 3)
    product = partial(jnp.einsum, precision=product_precision(q.dtype))
    scores = product("bkgtd,bksd->bkgts", q_BKGTD, k_BKSD, preferred_element_type=jnp.float32)
    scores *= form.scale
    if form.soft_cap is not None:
        scores = form.soft_cap * jnp.tanh(scores / form.soft_cap)
    visible_BTS = _visible(segments)
    if form.window:
        beyond = jnp.tril(jnp.ones((1, T, T), bool), -form.window)
        visible_BTS &= ~(beyond if local is None else beyond & local)
    scores = jnp.where(visible_BTS[:, None, None], scores, _MASKED)
    weights = jax.nn.softmax(scores, axis=-1).astype(v.dtype)
    out_BKGTD = product("bkgts,bksd->bkgtd", weights, v_BKSD)
    return out_BKGTD.transpose(0, 3, 1, 2, 4).reshape(N, H, D)


def _visible(segments: Int[Array, "B T"]) -> Bool[Array, "B T T"]:
    """Entry [b, t, s]: whether token t of row b may attend to token s."""
    T = segments.shape[1]
    causal = jnp.tril(jnp.ones((1, T, T), bool))
    return causal & (segments[:, :, None] == segments[:, None, :])


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attend_paged(
    form: Form,
    q: Float[Array, "N H D"],
    k: Float[Array, "N K D"],
    v: Float[Array, "N K D"],
    segments: Int[Array, "B T"],
    local: Bool[Array, ""] | None,
) -> Float[Array, "N H D"]:
    """Attend with each token as a sequence that reads its segment from one-token pages."""
    (N, _, D), (B, T) = q.shape, segments.shape
    place_T = jnp.arange(T, dtype=jnp.int32)
    begins = jnp.pad(segments[:, 1:] != segments[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    start_BT = jax.lax.cummax(jnp.where(begins, place_T[None], 0), axis=1)
    first_N = (jnp.arange(B, dtype=jnp.int32)[:, None] * T + start_BT).reshape(N)
    kv_pages = jnp.stack([k, v], axis=2).reshape(N, 1, -1, D)

    def attend(window: int) -> Float[Array, "N H D"]:
        return ragged_paged_attention(
            q,
            kv_pages,
            (place_T[None] - start_BT + 1).reshape(N),
            jnp.minimum(first_N[:, None] + place_T[None], N - 1),
            jnp.arange(N + 1, dtype=jnp.int32),
            jnp.full((1,), N, jnp.int32),
            sm_scale=form.scale,
            soft_cap=form.soft_cap,
            sliding_window=window or None,
        )

    if local is None:
        return attend(form.window)
    return jax.lax.cond(local, lambda: attend(form.window), lambda: attend(0))


def _forward(
    form: Form, q: Array, k: Array, v: Array, segments: Array, local: Array | None
) -> tuple[Array, tuple[Any, ...]]:
    return _attend_paged(form, q, k, v, segments, local), (q, k, v, segments, local)


def _backward(
    form: Form, kept: tuple[Any, ...], cotangent: Array
) -> tuple[Array, Array, Array, None, None]:
    q, k, v, segments, local = kept
    attend = attend_chunked if segments.shape[1] > MOST_DENSE_TOKENS else attend_dense
    _, pull_back = jax.vjp(lambda q, k, v: attend(form, q, k, v, segments, local), q, k, v)
    return (*pull_back(cotangent), None, None)


_attend_paged.defvjp(_forward, _backward)
