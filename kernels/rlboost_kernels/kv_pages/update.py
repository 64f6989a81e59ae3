"""The pool of key and value pages, and writing new tokens into it."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlboost_kernels.attention.validation import EIGHT_BITS, check_factors, check_kv_pages
from rlboost_kernels.cpu import ffi_calls as cpu
from rlboost_kernels.implementations import BY_PLATFORM, choose_late


def kv_pages_shape(
    num_pages: int, page_size: int, num_key_heads: int, head_dim: int
) -> tuple[int, int, int, int]:
    """Shape of a pool of pages: keys at even head indices, values at odd ones.

    Raises:
        ValueError: a size is not positive.
    """
    sizes = {
        "num_pages": num_pages,
        "page_size": page_size,
        "num_key_heads": num_key_heads,
        "head_dim": head_dim,
    }
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} is {size}; it must be at least 1")
    return num_pages, page_size, 2 * num_key_heads, head_dim


def update_kv_pages(
    kv_pages: Array,  # [P, L, 2*K, D]
    k: Array,  # [T, K, D]
    v: Array,  # [T, K, D]
    slot_mapping: Array,  # i32[T]
    *,
    k_scale: float | None = None,
    v_scale: float | None = None,
    implementation: str | None = None,
) -> Array:  # [P, L, 2*K, D]
    """Write the keys and values of T tokens into the pool and return it.

    Call it under `jax.jit` with the pool donated: only the new tokens are then written.
    Without donation the whole pool is copied. `kv_pages` must not be used afterwards.

    With "xla" on CPU, XLA converts a whole pool of 8-bit numbers to float16 and back around the
    write, donated or not, and up to jax 0.10 one of bfloat16 to float32; "cpu" never does.

    Args:
        k, v: cast to the type of the pool, to the nearest, ties to even. What is too large for 8
            bits, infinity too, becomes the largest number there is; NaN stays NaN.
        slot_mapping: page * page_size + offset of each token; no slot twice. A slot outside
            the pool drops its token, which is how padded rows are written nowhere.
        k_scale, v_scale: keys and values are divided by these before the cast; None is 1. Give
            the same ones to `ragged_paged_attention`. float8_e4m3fn reaches from 2^-9 to 448.
        implementation: a name of `available_implementations()`; None or "auto" takes the best,
            and "reference" is the program of "xla".

    Raises:
        ValueError: shapes or types do not fit, or a scale is not positive and finite.
        NotImplementedError: `implementation` cannot run here.
    """
    check_kv_pages(kv_pages)
    _check_tokens(kv_pages, k, v, slot_mapping)
    check_factors(k_scale=k_scale, v_scale=v_scale)
    return _update(
        kv_pages,
        k,
        v,
        slot_mapping,
        k_scale=None if k_scale is None else float(k_scale),
        v_scale=None if v_scale is None else float(v_scale),
        name=choose_late(implementation),
    )


@partial(jax.jit, static_argnames=("k_scale", "v_scale", "name"))
def _update(
    kv_pages: Array,
    k: Array,
    v: Array,
    slot_mapping: Array,
    *,
    k_scale: float | None,
    v_scale: float | None,
    name: str,
) -> Array:
    k, v = (_as_stored(x, s, kv_pages.dtype) for x, s in ((k, k_scale), (v, v_scale)))
    if name == BY_PLATFORM:
        return lax.platform_dependent(
            kv_pages, k, v, slot_mapping, cpu=cpu.update, default=_scatter
        )
    program = cpu.update if name == "cpu" else _scatter
    return program(kv_pages, k, v, slot_mapping)


def _as_stored(x: Array, scale: float | None, dtype: jnp.dtype) -> Array:
    """Divide by the scale, if there is one, and cast to the pool's type."""
    if scale is not None:
        # Written out, as a compiler that makes this of a division rounds otherwise than one that
        # does not, and a token has to become the same number wherever it is written again.
        x = x.astype(jnp.float32) * (1 / scale)
    if str(dtype) in EIGHT_BITS:
        # A cast makes infinity of what is too large, or NaN where there is no infinity.
        largest = float(jnp.finfo(dtype).max)
        x = jnp.clip(x, -largest, largest)
    return x.astype(dtype)


def _scatter(kv_pages: Array, k: Array, v: Array, slot_mapping: Array) -> Array:
    P, L, heads, D = kv_pages.shape
    T = k.shape[0]
    tokens = jnp.stack([k, v], axis=2).reshape(T, heads, D)
    # -1 would mean the last slot. Each dropped token gets a place of its own beyond the pool, as
    # `unique_indices` demands; without that promise a scatter on GPU can be serialised.
    inside = (slot_mapping >= 0) & (slot_mapping < P * L)
    slots = jnp.where(inside, slot_mapping, P * L + jnp.arange(T, dtype=jnp.int32))
    flat = kv_pages.reshape(P * L, heads, D)
    flat = flat.at[slots].set(tokens, mode="drop", unique_indices=True)
    return flat.reshape(P, L, heads, D)


def _check_tokens(kv_pages: Array, k: Array, v: Array, slot_mapping: Array) -> None:
    K, D = kv_pages.shape[2] // 2, kv_pages.shape[3]
    if k.ndim != 3 or k.shape[1:] != (K, D):
        raise ValueError(
            f"k has shape {k.shape}; the pool {kv_pages.shape} takes [tokens, {K}, {D}]"
        )
    if v.shape != k.shape:
        raise ValueError(f"v has shape {v.shape} and k {k.shape}; they must be equal")
    if slot_mapping.shape != k.shape[:1]:
        raise ValueError(
            f"slot_mapping has shape {slot_mapping.shape}; it must be [{k.shape[0]}], "
            "one slot per token"
        )
    if slot_mapping.dtype != jnp.int32:
        raise ValueError(f"slot_mapping has type {slot_mapping.dtype}; it must be int32")
