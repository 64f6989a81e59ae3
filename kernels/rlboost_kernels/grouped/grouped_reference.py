"""Products of groups of rows, one group after the other; rows of no group come to 0."""

import jax.numpy as jnp
from jax import Array, lax


def product(
    rows: Array,  # [M, K]
    matrices: tuple[Array, ...],  # [G, K, N], or [G, N, K] if transposed
    sizes: Array,  # i32[G]
    *,
    transposed: bool = False,
) -> tuple[Array, ...]:  # as many of [M, N]
    """Each row times the matrix of its group, for each stack of matrices."""
    return tuple(_wide(rows, m, sizes, transposed).astype(rows.dtype) for m in matrices)


def total(
    rows: tuple[Array, Array],
    matrices: tuple[Array, Array],
    sizes: Array,
    *,
    transposed: bool = False,
) -> Array:  # [M, N]
    """The sum of two such products, rounded once."""
    pairs = zip(rows, matrices, strict=True)
    first, second = (_wide(r, m, sizes, transposed) for r, m in pairs)
    return (first + second).astype(rows[0].dtype)


def outer(
    left: Array,  # [M, K]
    rights: tuple[Array, ...],  # [M, N]
    sizes: Array,
) -> tuple[Array, ...]:  # as many of [G, K, N]
    """For each group, `left` transposed times each of `rights`, over the rows of the group."""
    masks = _masks(sizes, len(left))
    highest = lax.Precision.HIGHEST
    return tuple(
        jnp.stack(
            [
                jnp.einsum(
                    "mk,mn->kn",
                    jnp.where(mask[:, None], left, 0),
                    jnp.where(mask[:, None], right, 0),
                    precision=highest,
                    preferred_element_type=jnp.float32,
                )
                for mask in masks
            ]
        ).astype(left.dtype)
        for right in rights
    )


def _wide(rows: Array, matrices: Array, sizes: Array, transposed: bool) -> Array:
    sums = jnp.zeros((len(rows), matrices.shape[1 if transposed else 2]), jnp.float32)
    over = (((1,), (1 if transposed else 0,)), ((), ()))
    for mask, matrix in zip(_masks(sizes, len(rows)), matrices, strict=True):
        highest = lax.Precision.HIGHEST
        wide = lax.dot_general(
            rows, matrix, over, precision=highest, preferred_element_type=jnp.float32
        )
        sums = jnp.where(mask[:, None], wide, sums)
    return sums


def _masks(sizes: Array, num_rows: int) -> list[Array]:
    ends, row = jnp.cumsum(sizes), jnp.arange(num_rows)
    return [(row >= ends[g] - sizes[g]) & (row < ends[g]) for g in range(len(sizes))]
