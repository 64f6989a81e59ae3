"""The public function, and the three products that a layer of experts is made of, by name."""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, assert_never

import jax
import jax.numpy as jnp
from jax import Array

from rlboost_kernels.grouped import blocks, grouped_reference, grouped_xla, layout

Implementation = Literal["reference", "xla", "blocks", "mosaic_gpu"]
IMPLEMENTATIONS: Final[tuple[Implementation, ...]] = ("reference", "xla", "blocks", "mosaic_gpu")
FLOATS: Final = ("float32", "bfloat16", "float16")


class Products(NamedTuple):
    """Products over rows whose groups begin at multiples of `layout.ROWS`; see
    `grouped_reference.py`.

    What rows in no group come to is not said, and need not be a number; where they are summed over
    they do not count. None of the three has a gradient: they are what gradients are made of.
    """

    product: Callable[..., tuple[Array, ...]]
    total: Callable[..., Array]
    outer: Callable[..., tuple[Array, ...]]


def products(implementation: Implementation, *, interpret: bool = False) -> Products:
    """The three products of an implementation.

    Args:
        interpret: run "mosaic_gpu" on CPU, as no program of a GPU does.
    """
    match implementation:
        case "reference":
            return Products(
                grouped_reference.product, grouped_reference.total, grouped_reference.outer
            )
        case "xla":
            return Products(grouped_xla.product, grouped_xla.total, grouped_xla.outer)
        case "blocks":
            return Products(blocks.product, blocks.total, blocks.outer)
        case "mosaic_gpu":
            mosaic_gpu = _mosaic_gpu()
            return Products(
                partial(mosaic_gpu.product, interpret=interpret),
                partial(mosaic_gpu.total, interpret=interpret),
                partial(mosaic_gpu.outer, interpret=interpret),
            )
        case _:
            assert_never(implementation)


def why_not(implementation: Implementation, dtype: Any, *axes: int, interpret: bool = False) -> str:
    """Say why it cannot run with matrices of these axes and this type, or "" if it can.

    Whether there is a GPU is not asked.
    """
    if implementation == "mosaic_gpu":
        return _mosaic_gpu().why_not(dtype, *axes, interpret=interpret)
    return ""


def _mosaic_gpu() -> Any:
    """Import the kernel's module only when needed: it brings in all of Pallas."""
    return import_module("rlboost_kernels.grouped.grouped_mosaic_gpu")


def choose_grouped(
    implementation: str | None, dtype: Any, *axes: int, interpret: bool = False
) -> Implementation:
    """Return the named implementation; for None, a GPU's kernel or else blocks, elsewhere "xla".

    Raises:
        NotImplementedError: the one named cannot run with matrices of these axes and this type.
    """
    if implementation is None:
        if jax.default_backend() != "gpu":
            return "xla"
        return "blocks" if why_not("mosaic_gpu", dtype, *axes) else "mosaic_gpu"
    for name in IMPLEMENTATIONS:
        if name == implementation:
            reason = why_not(name, dtype, *axes, interpret=interpret)
            platform = jax.default_backend()
            if not reason and name == "mosaic_gpu" and not interpret and platform != "gpu":
                reason = f"it is for GPU and this is {platform}; interpret=True tries it out"
            if reason:
                raise NotImplementedError(f"implementation {name!r} cannot run this: {reason}")
            return name
    known = ", ".join(IMPLEMENTATIONS)
    raise NotImplementedError(f"there is no implementation {implementation!r}; there are {known}")


def grouped_matmul(
    rows: Array,  # [M, K]
    matrices: Array,  # [G, K, N], or [G, N, K] if transposed
    sizes: Array,  # i32[G]
    *,
    transposed: bool = False,
    implementation: str | None = None,
    interpret: bool = False,
) -> Array:  # [M, N]
    """Each row times its group's matrix, with sums in float32. Rows of a group follow one another.

    Has a gradient to rows and matrices. Each entry of a result and of a gradient is one sum in a
    fixed order: equal arguments give equal bits.

    Args:
        sizes: rows of each group, 0 or more. The first group's rows come first; rows after the last
            group's are in no group and come to 0.
        implementation: "reference", "xla", "blocks" or "mosaic_gpu"; None takes "mosaic_gpu" on a
            GPU where shapes and types suit it and "blocks" where not, and "xla" elsewhere.

    Raises:
        ValueError: shapes or types do not fit together.
        NotImplementedError: the named implementation cannot run here.
    """
    _check(rows, matrices, sizes, transposed)
    name = choose_grouped(implementation, rows.dtype, *matrices.shape[1:], interpret=interpret)
    return _multiply(rows, matrices, sizes, transposed, name, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5))
def _multiply(
    rows: Array,
    matrices: Array,
    sizes: Array,
    transposed: bool,
    name: Implementation,
    interpret: bool,
) -> Array:
    by_group = _by_group(len(rows), sizes, name)
    product = products(name, interpret=interpret).product
    spread = layout.taken(rows, by_group.source)
    (out,) = product(spread, (matrices,), by_group.sizes, transposed=transposed)
    return layout.taken(out, by_group.place)


def _forward(
    rows: Array,
    matrices: Array,
    sizes: Array,
    transposed: bool,
    name: Implementation,
    interpret: bool,
) -> tuple[Array, tuple[Array, Array, Array]]:
    return _multiply(rows, matrices, sizes, transposed, name, interpret), (rows, matrices, sizes)


def _backward(
    transposed: bool,
    name: Implementation,
    interpret: bool,
    kept: tuple[Array, Array, Array],
    g: Array,
) -> tuple[Array, Array, None]:
    rows, matrices, sizes = kept
    to_rows = _multiply(g, matrices, sizes, not transposed, name, interpret)
    by_group = _by_group(len(rows), sizes, name)
    spread, upstream = (layout.taken(a, by_group.source) for a in (rows, g))
    left, right = (upstream, spread) if transposed else (spread, upstream)
    (to_matrices,) = products(name, interpret=interpret).outer(left, (right,), by_group.sizes)
    return to_rows, to_matrices, None


_multiply.defvjp(_forward, _backward)


def _by_group(num_rows: int, sizes: Array, name: Implementation) -> layout.Layout:
    """Lay out rows for an implementation; the definition and XLA's product take any places."""
    row = jnp.arange(num_rows, dtype=jnp.int32)
    if name in ("reference", "xla"):
        inside = row < sizes.sum()
        return layout.Layout(sizes, row, jnp.where(inside, row, num_rows))
    ends = jnp.cumsum(sizes)
    group = (ends[None, :] <= row[:, None]).sum(axis=1, dtype=jnp.int32)
    return layout.rows_by_group(group, len(sizes))


def _check(rows: Array, matrices: Array, sizes: Array, transposed: bool) -> None:
    if rows.ndim != 2 or matrices.ndim != 3 or sizes.shape != matrices.shape[:1]:
        raise ValueError(
            f"rows have shape {rows.shape}, matrices {matrices.shape} and sizes {sizes.shape}; "
            "they must be [M, K], [G, K, N] and [G]"
        )
    axis = 2 if transposed else 1
    if rows.shape[1] != matrices.shape[axis]:
        raise ValueError(
            f"rows have {rows.shape[1]} entries and axis {axis} of matrices has "
            f"{matrices.shape[axis]}; they are summed over and must be equal"
        )
    if str(rows.dtype) not in FLOATS or matrices.dtype != rows.dtype:
        raise ValueError(
            f"rows have type {rows.dtype} and matrices {matrices.dtype}; both must be one of "
            f"{', '.join(FLOATS)}"
        )
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise ValueError(f"sizes have type {sizes.dtype}; they must be integers")
