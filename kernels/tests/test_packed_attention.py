"""Attention over packed rows and its gradients against float64 NumPy; kernels are interpreted."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels.packed_attention import packed_reference, packed_triton
from rlboost_kernels.packed_attention.spans import spans_of

B, T, H, K, D = 2, 75, 4, 2, 16
SCALE = 0.3
LENGTHS = ((40, 1, 27, 7), (3, 72))  # of sequences in a row: some fill blocks, some share one
SEGMENTS = np.stack([np.repeat(np.arange(len(row)), row) for row in LENGTHS]).astype(np.int32)
TILES = packed_triton.Tiles(
    packed_triton.Tile(32, 16, 4, 1),
    packed_triton.Tile(16, 32, 4, 1),
    packed_triton.Tile(16, 32, 4, 1),
)
TOLERANCES = {"float32": 1e-5, "bfloat16": 2e-2}  # of the largest entry


def seen_by_hand(window: int) -> np.ndarray:
    """[B, T, T]: does token t look at token s?"""
    seen = np.zeros((B, T, T), bool)
    for b, t, s in np.ndindex(B, T, T):
        seen[b, t, s] = SEGMENTS[b, s] == SEGMENTS[b, t] and 0 <= t - s < (window or T)
    return seen


def random_heads(dtype: str) -> list[jax.Array]:
    """q, k, v and the gradient of the result."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=(B, T, n, D)), dtype) for n in (H, K, K, H)]


def attention_by_hand(heads, window, cap):
    """The result and the gradients of q, k and v, in float64: chain rule, all pairs of tokens."""
    q, k, v, upstream = (np.asarray(x, np.float64) for x in heads)
    k, v = (np.repeat(x, H // K, axis=2) for x in (k, v))
    products = SCALE * np.einsum("bthd,bshd->bhts", q, k)
    scores = cap * np.tanh(products / cap) if cap else products
    weights = np.where(seen_by_hand(window)[:, None], np.exp(scores), 0.0)
    weights /= weights.sum(axis=-1, keepdims=True)
    out = np.einsum("bhts,bshd->bthd", weights, v)
    slopes = np.einsum("bthd,bshd->bhts", upstream, v)
    slopes = weights * (slopes - (weights * slopes).sum(axis=-1, keepdims=True))
    if cap:
        slopes *= 1 - (scores / cap) ** 2
    dq = SCALE * np.einsum("bhts,bshd->bthd", slopes, k)
    dk = SCALE * np.einsum("bhts,bthd->bshd", slopes, q)
    dv = np.einsum("bhts,bthd->bshd", weights, upstream)
    dk, dv = (x.reshape(B, T, K, H // K, D).sum(axis=3) for x in (dk, dv))
    return out, dq, dk, dv


def assert_close(found, expected, dtype):
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == dtype
        error = np.abs(np.asarray(one, np.float64) - other).max() / np.abs(other).max()
        assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("window", [0, 1, 9, 50])
def test_spans_say_who_sees_whom(window):
    spans = spans_of(jnp.asarray(SEGMENTS), window)
    place = np.arange(T)
    to_past = (place[None] >= np.asarray(spans.first)[..., None]) & (place[None] <= place[:, None])
    to_future = (place[None] <= np.asarray(spans.last)[..., None]) & (place[None] >= place[:, None])
    np.testing.assert_array_equal(to_past, seen_by_hand(window))
    np.testing.assert_array_equal(to_future.transpose(0, 2, 1), seen_by_hand(window))


def test_a_window_that_an_array_switches_on_and_off():
    of = jax.jit(partial(spans_of, window=9))
    for local, window in ((True, 9), (False, 0)):
        found = of(jnp.asarray(SEGMENTS), local=jnp.asarray(local))
        for one, other in zip(found, spans_of(jnp.asarray(SEGMENTS), window), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("unoptimized")
@pytest.mark.parametrize(
    ("dtype", "window", "cap"),
    [("float32", 0, None), ("float32", 9, 2.0), ("bfloat16", 0, None), ("bfloat16", 50, 2.0)],
)
def test_values_and_gradients_in_float64(dtype, window, cap):
    """Rows are not divisible by blocks."""
    heads = random_heads(dtype)
    qkv = heads[:3]
    spans, scores = spans_of(jnp.asarray(SEGMENTS), window), packed_triton.Scores(SCALE, cap)
    options = {"tiles": TILES, "interpret": True}

    @jax.jit
    def values_and_gradients(q, k, v, upstream):
        out, lse = packed_triton.forward(q, k, v, spans, scores, **options)
        return out, *packed_triton.backward(q, k, v, spans, out, lse, upstream, scores, **options)

    expected = attention_by_hand(heads, window, cap)
    assert_close(values_and_gradients(*heads), expected, dtype)
    defined = packed_reference.attend(*qkv, spans, scale=SCALE, soft_cap=cap)
    assert_close((defined,), expected[:1], dtype)


@pytest.mark.usefixtures("unoptimized")
def test_blocks_that_nothing_sees_are_not_read():
    """The first sequence fills blocks of keys; what is in them makes no difference to others."""
    heads, scores = random_heads("float32"), packed_triton.Scores(SCALE, None)
    spoilt = [heads[0], *(x.at[0, :32].set(jnp.nan) for x in heads[1:3])]
    spans = spans_of(jnp.asarray(SEGMENTS))
    forward = jax.jit(
        lambda *qkv: packed_triton.forward(*qkv, spans, scores, tiles=TILES, interpret=True)[0]
    )
    clean, found = (forward(*qkv) for qkv in (heads[:3], spoilt))
    np.testing.assert_array_equal(found[0, 64:], clean[0, 64:])
    np.testing.assert_array_equal(found[1], clean[1])


def test_blocks_are_masked_only_where_they_must_be():
    """All blocks that a block of queries sees are whole, but for those at the two ends."""
    first = np.asarray(spans_of(jnp.asarray(SEGMENTS)).first)
    first = jnp.asarray(np.concatenate([first, np.full((B, 21), 75, np.int32)], axis=1))
    tile = packed_triton.Tile(16, 8, 4, 1)
    for b, at in ((0, 16), (0, 64), (1, 48)):
        blocks = [int(n) for n in packed_triton._key_blocks(first, b, at, tile)]
        for block in range(blocks[3] + 1):
            pairs = [
                first[b, t] <= s <= t
                for t in range(at, at + 16)
                for s in range(8 * block, 8 * block + 8)
            ]
            assert all(pairs) == (blocks[1] <= block < blocks[2])
            assert any(pairs) == (blocks[0] <= block < blocks[3])


def test_shapes_that_it_does_not_take_have_reasons():
    assert packed_triton.why_not("bfloat16", 128) == "" == packed_triton.why_not("float32", 64)
    assert "head dim is 80" in packed_triton.why_not("bfloat16", 80)
    assert "float64" in packed_triton.why_not("float64", 64)


@pytest.mark.parametrize("head_dim", packed_triton.HEAD_DIMS)
@pytest.mark.parametrize("cap", [None, 50.0])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_all_blocks_divide_a_row(dtype, cap, head_dim):
    tiles = packed_triton.tiles_of(dtype, head_dim, packed_triton.Scores(SCALE, cap))
    for tile in tiles:
        assert tiles.tokens % tile.queries == 0 == tiles.tokens % tile.keys
