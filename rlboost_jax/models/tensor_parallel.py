"""A decoder whose heads, hidden width or experts, and vocabulary lie on several devices.

For the engine, inside `jax.shard_map` over the mesh axis `AXIS`. Every device has all rows. What a
matrix split by its inputs makes of them is on each device a part of a sum: two sums a layer, and
one of the look-up before the first. Logits are gathered, so all devices sample the same tokens.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from functools import reduce
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

AXIS: Final = "tensor"


def added_up(part: Float[Array, "N E"]) -> Float[Array, "N E"]:
    """The sum of all devices' parts, in the order of devices.

    An all-reduce may add up each piece of its buffer in another order, and so give a row other
    bits in another place. With two devices this moves as many bytes as one would.
    """
    return reduce(jnp.add, jax.lax.all_gather(part, AXIS))


def looked_up(table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    """Rows of a table whose entries are shared out in order."""
    mine = tokens - first_of(len(table))
    inside = (mine >= 0) & (mine < len(table))
    rows = table[jnp.clip(mine, 0, len(table) - 1)]
    return added_up(jnp.where(inside[:, None], rows, 0))


def gathered_columns(part: Float[Array, "N _"]) -> Float[Array, "N V"]:
    """All columns of a matrix whose columns are shared out in order."""
    return jax.lax.all_gather(part, AXIS, axis=1, tiled=True)


def first_of(count: int) -> Int[Array, ""]:
    """Where this device's share begins of what is given out `count` to each."""
    return jax.lax.axis_index(AXIS) * count
