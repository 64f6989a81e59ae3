"""Sums of a row's weights over a tree of fixed shape.

A node holds the sum of its 16 children; the leaves are the entries, in the order of their ids.
Every sum is short and always of the same terms in the same order, whichever program makes it.
Levels are counted from the leaves: on level l, child (id >> 4 l) & 15 of a node is on the way to an
entry.
"""

from typing import Final

import jax.numpy as jnp
from jax import Array

FANOUT: Final = 16  # children of a node


def num_levels(vocabulary: int) -> int:
    """Return how many choices lead from the root to an entry: 5 for 151,936 entries."""
    levels = 0
    while FANOUT**levels < vocabulary:
        levels += 1
    return levels


def sums(
    weights: Array,  # f32[T, V]
) -> tuple[list[Array], Array]:  # f32[T, nodes, 16] of each level, f32[T]
    """Sum up to the root: the children of all nodes by level, leaves first, and the total."""
    children: list[Array] = []
    values = weights
    while values.shape[1] > 1:
        children.append(_by_node(values))
        values = children[-1].sum(-1)
    return children, values[:, 0]


def path_sums(
    weights: Array,  # f32[T, n], of neighbouring entries
    tokens: Array,  # i32[T], ids in the whole vocabulary
    *,
    vocabulary: int,
    first: Array | int = 0,  # id of the first of these entries
    aligned: bool = True,  # whether that is a multiple of 16
) -> Array:  # f32[T, levels, 16]
    """Sum what these entries add to the children of each node on the way to a token."""
    if not aligned:
        weights, first = _placed(weights, first, vocabulary), 0
    values, found = weights, []
    for level in range(num_levels(vocabulary)):
        if level:
            values = _by_node(values).sum(-1)
            tokens, first = tokens // FANOUT, first // FANOUT
        if level == 1 and not (isinstance(first, int) and first == 0):
            values, first = _placed(values, first, -(-vocabulary // FANOUT)), 0
        ids = (tokens // FANOUT * FANOUT - first)[:, None] + jnp.arange(FANOUT)[None]
        here = (ids >= 0) & (ids < values.shape[1])
        chosen = jnp.take_along_axis(values, jnp.clip(ids, 0, values.shape[1] - 1), axis=1)
        found.append(jnp.where(here, chosen, 0.0))
    return jnp.stack(found, axis=1) if found else jnp.zeros((len(tokens), 0, FANOUT))


def _by_node(values: Array) -> Array:  # [T, n] to [T, nodes, 16]
    T, n = values.shape
    nodes = -(-n // FANOUT)
    return jnp.pad(values, ((0, 0), (0, nodes * FANOUT - n))).reshape(T, nodes, FANOUT)


def _placed(values: Array, first: Array | int, size: int) -> Array:
    """Fill up with zeros to `size` columns, of which these begin at `first`."""
    return jnp.roll(jnp.pad(values, ((0, 0), (0, size - values.shape[1]))), first, axis=1)
