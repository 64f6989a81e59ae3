"""Every row is computed for every split that it sees, and never twice."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels.attention import tiles
from rlboost_kernels.attention.rows import row_sequences

pytestmark = pytest.mark.usefixtures("unoptimized")

T, S, MAX_TOKENS = 40, 6, 2100


@pytest.mark.parametrize("window", [None, 1, 700])
@pytest.mark.parametrize("tile_rows", [1, 7, 32])
def test_items_and_splits_agree(tile_rows, window):
    cut = tiles.Cut(MAX_TOKENS, window)
    work = jax.jit(partial(tiles.work_items, T, tile_rows=tile_rows, cut=cut))
    splits_of = jax.jit(lambda *given: tiles.row_splits(row_sequences(T, *given)[1], cut))
    rng = np.random.default_rng(tile_rows)
    for _ in range(20):
        ends = np.sort(rng.integers(0, T + 1, S + 1)) * rng.integers(0, 2)
        ends[0] = 0
        kv_lens = np.minimum(np.diff(ends) + rng.integers(0, MAX_TOKENS, S), MAX_TOKENS)
        num_seqs = rng.integers(0, S + 1)
        metadata = [jnp.asarray(a, jnp.int32) for a in (kv_lens, ends, [num_seqs])]
        table, total = work(*metadata)
        seen = []
        for sequence, row, num_rows, position, split in np.asarray(table[: int(total[0])]):
            assert 1 <= num_rows <= tile_rows
            for i in range(num_rows):
                stop = position + i + 1
                assert stop == kv_lens[sequence] - (ends[sequence + 1] - 1 - row - i)
                first = 0 if window is None else max(0, stop - window)
                if first < (split + 1) * tiles.SPLIT_TOKENS and split * tiles.SPLIT_TOKENS < stop:
                    seen.append((row + i, split))
        ranges = map(range, *np.asarray(splits_of(*metadata)))
        assert sorted(seen) == [(row, split) for row, own in enumerate(ranges) for split in own]


def test_wrong_metadata_stay_inside():
    cut = tiles.Cut(MAX_TOKENS, None)
    work = jax.jit(lambda *metadata: tiles.work_items(T, *metadata, 7, cut))
    rng = np.random.default_rng(0)
    for _ in range(20):
        metadata = (rng.integers(-(10**6), 10**6, n) for n in (S, S + 1, 1))
        metadata = [jnp.asarray(a, jnp.int32) for a in metadata]
        table, total = work(*metadata)
        assert 0 <= int(total[0]) <= len(table)
        for sequence, row, num_rows, _, split in np.asarray(table[: int(total[0])]):
            assert 0 <= sequence < S
            assert 0 <= row < row + num_rows <= T
            assert 0 <= split < tiles.num_splits(MAX_TOKENS, 1)


@pytest.mark.parametrize(
    ("query_heads", "key_heads", "parts"), [(8, 8, 1), (14, 2, 1), (64, 1, 2), (71, 1, 71)]
)
def test_a_large_group_is_cut_into_equal_parts(query_heads, key_heads, parts):
    assert tiles.head_parts(query_heads, key_heads, most=56) == parts
