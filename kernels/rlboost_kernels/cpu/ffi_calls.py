"""The operations as calls of the compiled library."""

import math
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from rlboost_kernels.matmul.panels import PANEL
from rlboost_kernels.sharding import differ_like

_NO_WINDOW = 2**62


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
    """Ragged paged attention with scores in units of ln 2, which spares exp2 a product."""
    scale = sm_scale * k_scale
    call = jax.ffi.ffi_call(
        "rlboost_ragged_paged_attention",
        (
            jax.ShapeDtypeStruct(q.shape, q.dtype),
            jax.ShapeDtypeStruct(q.shape[:2] if return_lse else (0, 0), jnp.float32),
        ),
        vmap_method="sequential",
    )
    arguments = (q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs)
    results = call(
        _on_cpu(q),
        *arguments[1:],
        q_factor=np.float32(scale * math.log2(math.e) if soft_cap is None else scale / soft_cap),
        cap=np.float32(0.0 if soft_cap is None else soft_cap * math.log2(math.e)),
        v_scale=np.float32(v_scale),
        window=np.int64(_NO_WINDOW if sliding_window is None else sliding_window),
    )
    out, lse = (differ_like(result, *arguments) for result in results)
    return out, lse if return_lse else None


def update(kv_pages: Array, k: Array, v: Array, slot_mapping: Array) -> Array:
    """Write tokens of the pool's type into it; the result takes its place."""
    call = jax.ffi.ffi_call(
        "rlboost_update_kv_pages",
        jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
        vmap_method="sequential",
        input_output_aliases={0: 0},
    )
    pool = call(_on_cpu(kv_pages), k, v, slot_mapping)
    return differ_like(pool, kv_pages, k, v, slot_mapping)


def copy_pages(kv_pages: Array, source: Array, destination: Array) -> Array:
    """Copy pages within the pool, which the result takes the place of."""
    call = jax.ffi.ffi_call(
        "rlboost_copy_kv_pages",
        jax.ShapeDtypeStruct(kv_pages.shape, kv_pages.dtype),
        vmap_method="sequential",
        input_output_aliases={0: 0},
    )
    pool = call(_on_cpu(kv_pages), source, destination)
    return differ_like(pool, kv_pages, source, destination)


def matmul(x: Array, w: Array, *, transposed: bool, out_dtype: Any) -> Array:
    """Rows times a matrix: [M, K] x [K, N], x [N, K] if `transposed`, or x panels.

    Panels are [N / 32, K, 32], or in pairs [N / 32, K / 2, 64]: only in bfloat16, and where
    `library.multiplies_pairs`.
    """
    columns = w.shape[0] * PANEL if w.ndim == 3 else w.shape[0 if transposed else 1]
    if columns == 1 and x.dtype == jnp.float32 and x.shape[0] != 1:
        # The same sums with rows for columns: one column costs as much as a whole panel.
        return matmul(w.reshape(1, -1), x, transposed=True, out_dtype=out_dtype).reshape(-1, 1)
    shape = (x.shape[0], columns)
    call = jax.ffi.ffi_call(
        "rlboost_matmul", jax.ShapeDtypeStruct(shape, out_dtype), vmap_method="sequential"
    )
    return differ_like(call(_on_cpu(x), w, transposed=transposed), x, w)


def linear_read(data: Array) -> Array:  # u32[1]
    """Read an array from end to end, as fast as this machine's memory and all threads can."""
    call = jax.ffi.ffi_call("rlboost_linear_read", jax.ShapeDtypeStruct((1,), jnp.uint32))
    return call(_on_cpu(data))


# The identity, and on other platforms than CPU an error while a program is compiled for them.
# Without it XLA would complain of a name that it does not know.
_on_cpu_p = Primitive("rlboost_kernels_on_cpu")


def _on_cpu(x: Array) -> Array:
    return _on_cpu_p.bind(x)


def _refuse(context: mlir.LoweringRuleContext, x: mlir.ir.Value) -> NoReturn:
    platforms = ", ".join(context.module_context.platforms)
    raise NotImplementedError(
        f"implementation 'cpu' of rlboost_kernels cannot run on {platforms}; "
        "name another, or None for the best that can"
    )


_on_cpu_p.def_impl(lambda x: x)
_on_cpu_p.def_abstract_eval(lambda x: x)
mlir.register_lowering(_on_cpu_p, _refuse)
mlir.register_lowering(_on_cpu_p, lambda context, x: [x], platform="cpu")
batching.primitive_batchers[_on_cpu_p] = lambda xs, axes: (_on_cpu(xs[0]), axes[0])
