"""A decoder whose heads, hidden width or experts, and vocabulary lie on several devices.

For the engine, inside `jax.shard_map` over the mesh axis `AXIS`. Every device has all rows. With a
matrix split by its inputs each device has a part of a sum: two sums per layer, and one for the
look-up before the first. Logits are gathered, so all devices sample the same tokens.

Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
"""

from functools import reduce
from typing import Final

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

AXIS: Final = "tensor"


def added_up(part: Float[Array, "N E"]) -> Float[Array, "N E"]:
    """Sum of all devices' parts, in the order of devices.

    An all-reduce may add up each piece of its buffer in another order, and so give a row other
    bits in another place. With two devices this moves as many bytes as one would.
    """
    return reduce(jnp.add, jax.lax.all_gather(part, AXIS))


def looked_up(table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    """Look up rows of a table whose entries are divided in order among the devices."""
    mine = tokens - first_of(len(table))
    inside = (mine >= 0) & (mine < len(table))
    rows = table[jnp.clip(mine, 0, len(table) - 1)]
    return added_up(jnp.where(inside[:, None], rows, 0))


def gathered_columns(part: Float[Array, "N _"]) -> Float[Array, "N V"]:
    """Gather all columns of a matrix whose columns are divided in order among the devices."""
    return jax.lax.all_gather(part, AXIS, axis=1, tiled=True)


def first_of(count: int) -> Int[Array, ""]:
    """First index of this device's share if each device gets `count`."""
    return jax.lax.axis_index(AXIS) * count
