"""How a ragged batch is cut into pieces of equal cost for a GPU.

A tile is up to so many consecutive rows of one sequence; a split is `SPLIT_TOKENS` tokens of a
sequence at an absolute position, so its borders depend on nothing else. An item is a tile and a
split that one of its rows sees. Items are computed in any order and at any place; each row then
merges the results of its own splits in ascending order.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

SPLIT_TOKENS = 512


class Item(NamedTuple):
    """Consecutive rows of one sequence, and a split that one of them sees."""

    sequence: Array
    row: Array  # in `q`, the first one
    num_rows: Array
    position: Array  # of the first row in its sequence
    split: Array


class Items(NamedTuple):
    """Work items; those in use come first."""

    table: Array  # i32[items, 5], an `Item` in each row
    total: Array  # i32[1], items in use


class Splits(NamedTuple):
    """The splits that each row sees: `first` up to but without `stop`; no row sees any twice."""

    first: Array  # i32[T]
    stop: Array  # i32[T]


def head_parts(num_query_heads: int, num_key_heads: int, *, most: int) -> int:
    """Equal parts into which the query heads of a key head are cut so that none has over `most`."""
    group = num_query_heads // num_key_heads
    return next(n for n in range(1, group + 1) if group % n == 0 and group // n <= most)


def num_splits(num_pages: int, page_size: int) -> int:
    """Splits of the longest sequence that so many pages hold."""
    return -(-num_pages * page_size // SPLIT_TOKENS)


class Cut(NamedTuple):
    """Limits of any row's splits."""

    max_tokens: int  # that a sequence can hold
    sliding_window: int | None


def row_splits(visible_T: Array, cut: Cut) -> Splits:
    """Splits of each row, which sees so many tokens, i32[T], itself included."""
    visible_T = jnp.clip(visible_T, 0, cut.max_tokens)
    first_T = jnp.zeros_like(visible_T)
    if cut.sliding_window is not None:
        first_T = jnp.maximum(visible_T - cut.sliding_window, 0) // SPLIT_TOKENS
    return Splits(first_T, (visible_T + SPLIT_TOKENS - 1) // SPLIT_TOKENS)


def work_items(
    num_rows: int,  # T
    kv_lens: Array,  # i32[S]
    cu_q_lens: Array,  # i32[S+1]
    num_seqs: Array,  # i32[1]
    tile_rows: int,  # rows of `q` in a tile
    cut: Cut,
) -> Items:
    """List all tiles with the splits that they see, sequence by sequence.

    Whatever the metadata hold, an item's rows lie inside of `q` and its tokens inside of the
    page table.
    """
    T, S = num_rows, kv_lens.shape[0]
    in_use_S = jnp.arange(S, dtype=jnp.int32) < num_seqs[0]
    start_S = jnp.clip(cu_q_lens[:-1], 0, T)
    stop_S = jnp.clip(cu_q_lens[1:], start_S, T)
    rows_S = jnp.where(in_use_S, stop_S - start_S, 0)
    tiles_S = (rows_S + tile_rows - 1) // tile_rows
    tiles_before_S = jnp.cumsum(tiles_S) - tiles_S

    # The most tiles: as many sequences as possible with one row, and the rest of the rows in one.
    num_tiles = min(S, T) + (T - min(S, T)) // tile_rows
    tile_N = jnp.arange(num_tiles, dtype=jnp.int32)
    sequence_N = _last_not_above(tiles_before_S, tile_N)
    offset_N = (tile_N - tiles_before_S[sequence_N]) * tile_rows
    rows_N = jnp.clip(rows_S[sequence_N] - offset_N, 0, tile_rows)
    row_N = start_S[sequence_N] + offset_N
    position_N = kv_lens[sequence_N] - rows_S[sequence_N] + offset_N

    stop_N = jnp.where(rows_N > 0, jnp.clip(position_N + rows_N, 0, cut.max_tokens), 0)
    most = num_splits(cut.max_tokens, 1)
    first_split_N = jnp.zeros_like(row_N)
    if cut.sliding_window is not None:
        first_split_N = jnp.maximum(position_N + 1 - cut.sliding_window, 0) // SPLIT_TOKENS
        most = min(most, (cut.sliding_window + tile_rows - 2) // SPLIT_TOKENS + 2)
    splits_N = jnp.maximum((stop_N + SPLIT_TOKENS - 1) // SPLIT_TOKENS - first_split_N, 0)
    items_before_N = jnp.cumsum(splits_N) - splits_N

    number = jnp.arange(num_tiles * most, dtype=jnp.int32)
    tile = _last_not_above(items_before_N, number)
    split = first_split_N[tile] + number - items_before_N[tile]
    item = Item(sequence_N[tile], row_N[tile], rows_N[tile], position_N[tile], split)
    table = jnp.stack(item, axis=1)
    return Items(table, jnp.minimum(jnp.sum(splits_N, keepdims=True), len(number)))


def _last_not_above(sorted_values: Array, keys: Array) -> Array:
    """Index of the last value that is not above each key; values start with 0."""
    found = jnp.searchsorted(sorted_values, keys, side="right", method="scan_unrolled")
    return found.astype(jnp.int32) - 1


def rows_by_key_head(q: Array, num_parts: int) -> Array:  # [T, H, D] -> [K, T*G, D]
    """Bring the query heads of one key head together, so that a tile's rows are neighbours."""
    T, H, D = q.shape
    G = H // num_parts
    return q.reshape(T, num_parts, G, D).swapaxes(0, 1).reshape(num_parts, T * G, D)
