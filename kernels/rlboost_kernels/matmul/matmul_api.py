"""The public function: validate, choose an implementation, run it."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from rlboost_kernels.cpu import ffi_calls as cpu
from rlboost_kernels.cpu import library
from rlboost_kernels.implementations import BY_PLATFORM, choose_late
from rlboost_kernels.matmul.panels import PANEL, are_pairs, packed, unpack_panels
from rlboost_kernels.precision import product_precision

_FLOATS = ("float32", "bfloat16", "float16")


def matmul(
    x: Array,  # [M, K]
    w: Array,  # [K, N], [N, K] if transposed, or panels of `pack_panels`
    *,
    transposed: bool = False,
    out_dtype: Any = None,
    implementation: str | None = None,
) -> Array:  # [M, N]
    """Product of rows with a matrix; the bits of a row depend on the row and the matrix alone.

    With "cpu" that holds for any number of rows M. Each element is a sum over K in chains of 512
    fused multiply-adds at absolute positions, added up in order, in float32. On processors with
    AVX512_BF16 bfloat16 is multiplied two entries at a time, in the same order and with the same
    roundings, but what is smaller than 2^-126 in a chain counts as zero. "xla" is the library's
    product, which on CPU keeps the promise among all M that are multiples of 16 and at
    least 64, and elsewhere for one M. Where N is a multiple of 64, both have been seen to give
    equal bits. How the matrix lies changes no bit; "cpu" reads panels fastest.

    Has a gradient to both arguments: plain products.

    Args:
        out_dtype: the type of `x`, which None means, or float32.
        implementation: a name of `available_implementations()`; None or "auto" takes the best.

    Raises:
        ValueError: shapes or types do not fit together.
        NotImplementedError: the named implementation cannot run here.
    """
    out_dtype = jnp.dtype(x.dtype if out_dtype is None else out_dtype)
    _check(x, w, transposed, out_dtype)
    name = choose_late(implementation)
    return _multiply(x, w, transposed, out_dtype, name)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
@partial(jax.jit, static_argnums=(2, 3, 4))
def _multiply(x: Array, w: Array, transposed: bool, out_dtype: Any, name: str) -> Array:
    plain = partial(_plain, transposed=transposed, out_dtype=out_dtype)
    compiled = partial(_compiled, transposed=transposed, out_dtype=out_dtype)
    if name == BY_PLATFORM:
        return lax.platform_dependent(x, w, cpu=compiled, default=plain)
    return compiled(x, w) if name == "cpu" else plain(x, w)


def _compiled(x: Array, w: Array, *, transposed: bool, out_dtype: Any) -> Array:
    if are_pairs(w) and not (w.dtype == jnp.bfloat16 and library.multiplies_pairs()):
        w = unpack_panels(w)  # of another processor, or for products in another type
    return cpu.matmul(x, w, transposed=transposed, out_dtype=out_dtype)


def _plain(x: Array, w: Array, *, transposed: bool, out_dtype: Any) -> Array:
    w = unpack_panels(w) if w.ndim == 3 else w
    over = (((1,), (1 if transposed else 0,)), ((), ()))
    return _wide(x, w, over).astype(out_dtype)  # rounded once


def _wide(x: Array, w: Array, over: Any) -> Array:
    """Multiply with float32 sums of unrounded products."""
    precision = product_precision(x.dtype)
    return lax.dot_general(x, w, over, precision=precision, preferred_element_type=jnp.float32)


def _forward(
    x: Array, w: Array, transposed: bool, out_dtype: Any, name: str
) -> tuple[Array, tuple[Array, Array]]:
    return _multiply(x, w, transposed, out_dtype, name), (x, w)


def _backward(
    transposed: bool, out_dtype: Any, name: str, kept: tuple[Array, Array], g: Array
) -> tuple[Array, Array]:
    x, w = kept
    g = g.astype(x.dtype)
    panels = w.ndim == 3
    dx = _plain(g, unpack_panels(w) if panels else w, transposed=not transposed, out_dtype=x.dtype)
    left, right = (g, x) if transposed else (x, g)
    over = (((0,), (0,)), ((), ()))
    dw = _wide(left, right, over).astype(w.dtype)
    return dx, packed(dw, in_pairs=are_pairs(w)) if panels else dw


_multiply.defvjp(_forward, _backward)


def _check(x: Array, w: Array, transposed: bool, out_dtype: Any) -> None:
    panels = w.ndim == 3 and (w.shape[2] == PANEL or are_pairs(w)) and not transposed
    if x.ndim != 2 or not (w.ndim == 2 or panels):
        raise ValueError(
            f"x has shape {x.shape} and w {w.shape}; both must have two axes, or w be the panels "
            "of one that is not transposed"
        )
    axis = 1 if transposed or panels else 0
    K = w.shape[axis] * (2 if are_pairs(w) else 1)
    if x.shape[1] != K:
        raise ValueError(
            f"rows of x have {x.shape[1]} entries and axis {axis} of w has {K}; "
            "they are summed over and must be equal"
        )
    if str(x.dtype) not in _FLOATS or w.dtype != x.dtype:
        raise ValueError(
            f"x has type {x.dtype} and w {w.dtype}; both must be one of {', '.join(_FLOATS)}"
        )
    if out_dtype not in (x.dtype, jnp.float32):
        raise ValueError(f"out_dtype is {out_dtype}; it must be {x.dtype} or float32")
