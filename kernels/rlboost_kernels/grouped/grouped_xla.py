"""`jax.lax.ragged_dot`: a kernel on TPU; elsewhere the product of all rows with all matrices."""

import jax.numpy as jnp
from jax import Array, lax

_OUTER = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((0,), (0,)), ((), ())),
    lhs_ragged_dimensions=[0],
    rhs_group_dimensions=[],
)


def product(
    rows: Array, matrices: tuple[Array, ...], sizes: Array, *, transposed: bool = False
) -> tuple[Array, ...]:
    return tuple(_wide(rows, m, sizes, transposed).astype(rows.dtype) for m in matrices)


def total(
    rows: tuple[Array, Array],
    matrices: tuple[Array, Array],
    sizes: Array,
    *,
    transposed: bool = False,
) -> Array:
    pairs = zip(rows, matrices, strict=True)
    first, second = (_wide(r, m, sizes, transposed) for r, m in pairs)
    return (first + second).astype(rows[0].dtype)


def outer(left: Array, rights: tuple[Array, ...], sizes: Array) -> tuple[Array, ...]:
    return tuple(
        lax.ragged_dot_general(
            left, right, sizes, _OUTER, preferred_element_type=jnp.float32
        ).astype(left.dtype)
        for right in rights
    )


def _wide(rows: Array, matrices: Array, sizes: Array, transposed: bool) -> Array:
    matrices = jnp.swapaxes(matrices, 1, 2) if transposed else matrices
    return lax.ragged_dot(rows, matrices, sizes, preferred_element_type=jnp.float32)
