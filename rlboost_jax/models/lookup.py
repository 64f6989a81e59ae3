"""Look-up of a table's rows, with a gradient that is summed in a fixed order.

The gradient of a look-up adds rows to the entries of their tokens. A GPU does that in any order;
where one is required (`compiler_options.py`) XLA sorts every number by its entry: of 14,848 tokens
of width 4,096 some hundred passes over 60 million, 57 ms by the H100's memory, and 1.5 GB. Here
tokens are sorted, and the rows of equal ones are neighbours whose sums a scan makes: 1 ms, 0.1 GB.
CPUs add one by one, in the order of tokens.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int


def rows_of(table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    """Look up `table[tokens]`."""
    return table[tokens] if jax.default_backend() == "cpu" else rows_in_order(table, tokens)


def rows_in_order(table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    """Look up rows as GPUs do. Within `jax.shard_map` the table has to vary where tokens do."""
    return _rows(len(table), table, tokens.astype(jnp.int32))


def added_up(
    tokens: Int[Array, " N"], rows: Float[Array, "N E"], count: int
) -> Float[Array, "V E"]:
    """Sum of each token's rows, of `count` tokens: equal bits for equal arguments.

    Sums of neighbours, of those sums, and so on, within the rows of a token (a segmented scan,
    Blelloch 1990, "Prefix sums and their applications", section 1.5).
    """
    order = jnp.argsort(tokens, stable=True)
    tokens, rows = tokens[order], rows.at[order].get(unique_indices=True)
    changes = tokens[1:] != tokens[:-1]
    end = jnp.ones(1, bool)
    _, sums = jax.lax.associative_scan(_join, (jnp.concatenate([end, changes]), rows))
    last = jnp.concatenate([changes, end])
    # Each entry is written once, and sums that are not whole go past the end, each to its own.
    nowhere = count + jnp.arange(len(tokens), dtype=tokens.dtype)
    places = jnp.where(last, tokens, nowhere)
    empty = jnp.zeros((count, rows.shape[1]), rows.dtype)
    return empty.at[places].set(sums, mode="drop", unique_indices=True)


_Part = tuple[Bool[Array, " N"], Float[Array, "N E"]]


def _join(left: _Part, right: _Part) -> _Part:
    """Combine sums up to the end of a range, from its last beginning of a token if it has one."""
    (begins, sums), (begins_right, sums_right) = left, right
    whole = jnp.where(begins_right[:, None], sums_right, sums + sums_right)
    return begins | begins_right, whole


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _rows(count: int, table: Float[Array, "V E"], tokens: Int[Array, " N"]) -> Float[Array, "N E"]:
    return table[tokens]


def _forward(
    count: int, table: Float[Array, "V E"], tokens: Int[Array, " N"]
) -> tuple[Float[Array, "N E"], Int[Array, " N"]]:
    return table[tokens], tokens


def _backward(
    count: int, tokens: Int[Array, " N"], upstream: Float[Array, "N E"]
) -> tuple[Float[Array, "V E"], None]:
    return added_up(tokens, upstream, count), None


_rows.defvjp(_forward, _backward)
