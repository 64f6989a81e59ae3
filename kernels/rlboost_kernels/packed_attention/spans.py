"""Which tokens each token of a packed row sees, as two numbers a token.

Sequences lie one after another in a row, so what a token sees is an interval that ends with itself
and what sees a token is one that begins with it. Either end never decreases along a row: the keys
of a block of queries are an interval of blocks as well, which a kernel finds in its own memory.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class RowSpans(NamedTuple):
    """Ends of what each token sees: places in the row, both inclusive.

    Query t sees key s where first[t] <= s <= t, which is where s <= t <= last[s].
    """

    first: Array  # i32[B, T], of the keys that this token's query sees
    last: Array  # i32[B, T], of the queries that see this token's key


def spans_of(segments: Array, window: int = 0, local: Array | None = None) -> RowSpans:
    """Compute the spans of packed sequences.

    Args:
        segments: i32[B, T], which sequence each token is of; those of one are neighbours.
        window: tokens that a query sees, its own included; 0: all of its sequence up to it.
        local: bool[], whether the window counts; None: it does.
    """
    T = segments.shape[1]
    place_T = jnp.arange(T, dtype=jnp.int32)[None]
    changes = segments[:, 1:] != segments[:, :-1]
    begins = jnp.pad(changes, ((0, 0), (1, 0)), constant_values=True)
    ends = jnp.pad(changes, ((0, 0), (0, 1)), constant_values=True)
    first = jax.lax.cummax(jnp.where(begins, place_T, 0), axis=1)
    last = jax.lax.cummin(jnp.where(ends, place_T, T - 1), axis=1, reverse=True)
    if window:
        near = RowSpans(
            jnp.maximum(first, place_T - window + 1), jnp.minimum(last, place_T + window - 1)
        )
        if local is None:
            return near
        return RowSpans(jnp.where(local, near.first, first), jnp.where(local, near.last, last))
    return RowSpans(first, last)


def padded(spans: RowSpans, tokens: int) -> RowSpans:
    """Extend rows to so many tokens, by a sequence that has only the new ones."""
    T = spans.first.shape[1]
    if tokens == T:
        return spans
    new = ((0, 0), (0, tokens - T))
    return RowSpans(
        jnp.pad(spans.first, new, constant_values=T),
        jnp.pad(spans.last, new, constant_values=tokens - 1),
    )
