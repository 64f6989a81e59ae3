"""Products of groups of rows without a kernel: block by block, each with its group's matrix.

Groups begin at multiples of `ROWS`. Several blocks are multiplied at once, with copies of their
matrices, since one alone would keep little of a device busy. It costs the products that were asked
for, and the copies; blocks in no group are multiplied, too.
"""

import jax.numpy as jnp
from jax import Array, lax

from rlboost_kernels.grouped.layout import ROWS, group_of_blocks

AT_ONCE = 16  # blocks


def product(
    rows: Array, matrices: tuple[Array, ...], sizes: Array, *, transposed: bool = False
) -> tuple[Array, ...]:
    return tuple(_wide((rows,), (m,), sizes, transposed) for m in matrices)


def total(
    rows: tuple[Array, Array],
    matrices: tuple[Array, Array],
    sizes: Array,
    *,
    transposed: bool = False,
) -> Array:
    return _wide(rows, matrices, sizes, transposed)


def outer(left: Array, rights: tuple[Array, ...], sizes: Array) -> tuple[Array, ...]:
    """Multiply one block after the other; a group's sum is that of its blocks in their order."""
    blocks = left.reshape(-1, ROWS, left.shape[1])
    others = tuple(right.reshape(-1, ROWS, right.shape[1]) for right in rights)
    G = len(sizes)
    group = group_of_blocks(jnp.cumsum(sizes), len(left))

    def add(sums: tuple[Array, ...], block: tuple[Array, ...]) -> tuple[tuple[Array, ...], None]:
        number, left, *rights = block
        # A block in no group is added to one that is thrown away.
        pairs = zip(sums, rights, strict=True)
        return tuple(s.at[number].add(_dot("rk,rn->kn", left, r)) for s, r in pairs), None

    start = tuple(jnp.zeros((G + 1, left.shape[1], r.shape[1]), jnp.float32) for r in rights)
    sums, _ = lax.scan(add, start, (group, blocks, *others))
    return tuple(s[:G].astype(left.dtype) for s in sums)


def _wide(
    rows: tuple[Array, ...], matrices: tuple[Array, ...], sizes: Array, transposed: bool
) -> Array:
    (M, _), G = rows[0].shape, len(sizes)
    group = jnp.minimum(group_of_blocks(jnp.cumsum(sizes), M), G - 1)
    equation = "rk,nk->rn" if transposed else "rk,kn->rn"

    def of_block(block: tuple[Array, ...]) -> Array:
        number, *parts = block
        pairs = zip(parts, matrices, strict=True)
        sums = [_dot(equation, part, stack[number]) for part, stack in pairs]
        return sum(sums[1:], start=sums[0]).astype(rows[0].dtype)

    blocks = tuple(part.reshape(-1, ROWS, part.shape[1]) for part in rows)
    out = lax.map(of_block, (group, *blocks), batch_size=AT_ONCE)
    return out.reshape(M, -1)


def _dot(equation: str, left: Array, right: Array) -> Array:
    highest = lax.Precision.HIGHEST  # of float32; there is but one of the shorter types
    return jnp.einsum(equation, left, right, precision=highest, preferred_element_type=jnp.float32)
