"""Which results may differ between devices, as `jax.shard_map` has to know."""

import jax
from jax import Array, lax
from jax.sharding import AxisType


def differ_like(x: Array, *arguments: Array) -> Array:
    """Return `x`, which may then differ between devices wherever an argument may.

    `jax.shard_map` follows what differs along which axes of its mesh, and wants it to be the same
    throughout a loop and in all branches. It cannot see into foreign calls, and takes constants
    for equal everywhere. A choice between `x` and `x` by something that differs settles it, and
    the compiler removes it.

    What Pallas makes of a kernel to interpret it is out of reach: `triton` interpreted under
    `jax.shard_map` needs `check_vma=False`. Compiled for a GPU a kernel is one foreign call.
    """
    if AxisType.Manual not in jax.sharding.get_abstract_mesh().axis_types:
        return x
    corners = [argument[(slice(0, 1),) * argument.ndim] for argument in arguments]
    either = sum((corner != 0).any() for corner in corners)
    return lax.select_n(either > 0, x, x)
