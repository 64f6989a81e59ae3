"""Where rows lie so that every group begins at a multiple of `ROWS` rows.

No tile of a product then has rows of two groups. The price is room: half a tile for each group on
average, and one in the worst case.
"""

from typing import Final, NamedTuple

import jax.numpy as jnp
from jax import Array

ROWS: Final = 128  # of a tile


class Layout(NamedTuple):
    """Places of M rows among R."""

    sizes: Array  # i32[G], of the groups with what they are filled up with
    source: Array  # i32[R], the row at each place; M where there is none
    place: Array  # i32[M], of each row; R if it is in no group


def room(num_rows: int, num_groups: int) -> int:
    """Number of places that is enough for any sizes of the groups."""
    return (num_rows + min(num_rows, num_groups) * (ROWS - 1)) // ROWS * ROWS


def rows_by_group(group: Array, num_groups: int) -> Layout:
    """Lay out rows by group, each group's in their order.

    Args:
        group: i32[M], of each row; `num_groups` if it is in none.
    """
    (M,), G = group.shape, num_groups
    R = room(M, G)
    order = jnp.argsort(group, stable=True).astype(jnp.int32)
    rank = (
        jnp.zeros(M, jnp.int32).at[order].set(jnp.arange(M, dtype=jnp.int32), unique_indices=True)
    )
    held = (group[:, None] == jnp.arange(G)[None, :]).sum(axis=0, dtype=jnp.int32)
    sizes = -(-held // ROWS) * ROWS
    ends, first = jnp.cumsum(sizes), jnp.cumsum(held) - held
    starts = ends - sizes

    inside = jnp.minimum(group, G - 1)
    place = jnp.where(group < G, rank + (starts - first)[inside], R)
    blocks = group_of_blocks(ends, R)
    known = jnp.minimum(blocks, G - 1)
    offset = jnp.arange(R, dtype=jnp.int32).reshape(-1, ROWS) - starts[known][:, None]
    real = (blocks < G)[:, None] & (offset < held[known][:, None])
    at = jnp.where(real, offset + first[known][:, None], 0).reshape(R)
    source = jnp.where(real.reshape(R), order[at], M)
    return Layout(sizes, source, place.astype(jnp.int32))


def group_of_blocks(ends: Array, num_rows: int) -> Array:
    """Group of each block, i32[num_rows
    ROWS]; the number of groups where a block has none.

    Args:
        ends: i32[G], the place after each group's last one.
    """
    starts = jnp.arange(0, num_rows, ROWS, dtype=jnp.int32)
    return (ends[None, :] <= starts[:, None]).sum(axis=1, dtype=jnp.int32)


def taken(rows: Array, source: Array) -> Array:
    """Move rows [M, …] to their places [R, …]; zeros where there are none."""
    at = jnp.minimum(source, len(rows) - 1)
    found = rows.at[at].get(mode="promise_in_bounds")
    real = (source < len(rows)).reshape(-1, *(1,) * (rows.ndim - 1))
    return jnp.where(real, found, jnp.zeros((), rows.dtype))
