"""The digest of parameters that no process holds whole."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from rlboost_jax.learner.processes.process_group import ProcessGroup, tell_all
from rlboost_jax.models.parameter_sharding import program_on, replicated
from rlboost_jax.models.params import Params, params_digest
from rlboost_jax.weights.shares import Read


def shared_digest(
    params: Params, world: ProcessGroup, *, base: str, read: Read = np.asarray
) -> str:
    """`params_digest` of arrays over a mesh of several processes, which all call this.

    SHA-256 takes bytes in one order, so that one process has to see them all, though never more
    than a layer of a leaf at a time. It is the last: process 0 has enough to do. Devices bring the
    layers together, for which a gradient's working space, free by now, has room.
    """
    hashes = world.count - 1

    def pieces(name: str, leaf: jax.Array) -> Iterator[np.ndarray]:
        for piece in _gathered(name, leaf):
            local = piece.addressable_data(0)
            if world.index == hashes:
                yield read(local)
            else:
                local.block_until_ready()

    digest = params_digest(params, base=base, pieces=pieces)
    found: str = tell_all({"digest": digest}, source=hashes)["digest"]
    return found


def _gathered(name: str, leaf: jax.Array) -> Iterator[jax.Array]:
    """Consecutive pieces of a leaf, each gathered on all devices."""
    assert isinstance(leaf.sharding, NamedSharding)
    layer, whole = _programs(leaf.sharding.mesh)
    if not name.startswith("layers."):
        yield whole(leaf)
        return
    for index in range(leaf.shape[0]):
        yield layer(leaf, np.int32(index))


@cache
def _programs(mesh: Any) -> tuple[Any, Any]:
    everywhere = replicated(mesh)

    def layer(leaf: jax.Array, index: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(leaf, index, keepdims=False)

    def whole(leaf: jax.Array) -> jax.Array:
        return leaf

    return (
        program_on(mesh, layer, out_shardings=everywhere),
        program_on(mesh, whole, out_shardings=everywhere),
    )
