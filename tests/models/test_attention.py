"""All ways of attending over packed rows, against a loop in NumPy float64."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from configs import base
from rlboost_jax.models import attention
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.memory_estimates import MOST_DENSE_TOKENS

WAYS = ("dense", "chunked", "paged")
B, T, H, K, D = 2, 24, 4, 2, 8
SEGMENTS = np.array(
    [[1] * 9 + [2] * 4 + [3] * 8 + [0] * 3, [1] * 20 + [2] * 4], np.int32
)  # of uneven lengths, with padding
PLAIN = replace(run_config(base.get_config()).model, head_dim=D)
WINDOW = replace(PLAIN, sliding_window=5, attention_pattern="LG")
CAPPED = replace(WINDOW, attention_soft_cap=2.0, query_scalar=20.0)
# Five blocks of a row; the last one is filled up.
row_attention = partial(attention.row_attention, block=5)


@pytest.fixture(scope="module")
def heads() -> tuple[jax.Array, jax.Array, jax.Array]:
    q, k, v = (
        jax.random.normal(key, (B * T, n, D))
        for key, n in zip(jax.random.split(jax.random.key(0), 3), (H, K, K), strict=True)
    )
    return 3.0 * q, k, v


def by_hand(q, k, v, *, window=T, scalar=D, cap=0.0) -> np.ndarray:
    q, k, v = (np.asarray(x, np.float64).reshape(B, T, -1, D) for x in (q, k, v))
    out = np.zeros((B, T, H, D))
    for b, t, h in np.ndindex(B, T, H):
        nearest = range(max(0, t - window + 1), t + 1)
        seen = [s for s in nearest if SEGMENTS[b, s] == SEGMENTS[b, t]]
        key_head = h // (H // K)
        scores = np.array([q[b, t, h] @ k[b, s, key_head] for s in seen]) / np.sqrt(scalar)
        if cap:
            scores = cap * np.tanh(scores / cap)
        weights = np.exp(scores - scores.max())
        out[b, t, h] = weights @ v[b, seen, key_head] / weights.sum()
    return out.reshape(B * T, H, D)


@pytest.mark.parametrize("how", WAYS)
def test_a_token_sees_its_own_segment_up_to_itself(heads, how):
    out = jax.jit(row_attention(PLAIN, jnp.asarray(SEGMENTS), how)(False))(*heads)
    np.testing.assert_allclose(out, by_hand(*heads), atol=2e-6)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("config", [WINDOW, CAPPED], ids=["window", "capped"])
def test_a_window_a_cap_and_a_scale(heads, how, config):
    """A layer knows its kind as it is traced, or by an array where layers are scanned."""
    attend = row_attention(config, jnp.asarray(SEGMENTS), how)
    traced = jax.jit(lambda local, *heads: attend(local)(*heads))
    options = {"scalar": config.query_scalar or D, "cap": config.attention_soft_cap}
    for local, window in ((True, 5), (False, T)):
        expected = by_hand(*heads, window=window, **options)
        np.testing.assert_allclose(jax.jit(attend(local))(*heads), expected, atol=2e-6)
        np.testing.assert_allclose(traced(jnp.asarray(local), *heads), expected, atol=2e-6)


@pytest.mark.parametrize("config", [PLAIN, CAPPED], ids=["plain", "capped"])
def test_the_gradient_is_that_of_the_dense_form(heads, config):
    upstream = jax.random.normal(jax.random.key(1), (B * T, H, D))

    def gradients(how):
        attend = row_attention(config, jnp.asarray(SEGMENTS), how)
        of = jax.jit(jax.grad(lambda args, local: (attend(local)(*args) * upstream).sum()))
        return [of(heads, jnp.asarray(local)) for local in (True, False)]

    expected = gradients("dense")
    for how in ("paged", "chunked"):
        for found, dense in zip(gradients(how), expected, strict=True):
            for one, other in zip(found, dense, strict=True):
                np.testing.assert_allclose(one, other, atol=1e-5)


def test_chunked_is_dense_in_float64(heads):
    """All but the order of sums: values and gradients to the digits of float64, but for the dense
    form's scores, which are of float32."""
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(x), jnp.float64) for x in heads]
        attend = jax.jit(row_attention(CAPPED, jnp.asarray(SEGMENTS), "chunked")(True))
        found = attend(*wide)
        assert found.dtype == jnp.float64
        expected = by_hand(*heads, window=5, scalar=20.0, cap=2.0)
        np.testing.assert_allclose(found, expected, atol=1e-12)
        check_grads(attend, wide, order=1, modes="rev", eps=1e-6)


@pytest.mark.optimized
def test_what_is_seen_by_no_query_is_passed_over(heads):
    """Keys of other sequences, and those before the window, are not so much as multiplied by 0."""
    k, v = (x.reshape(B, T, -1, D) for x in heads[1:])
    segments = np.tile(np.repeat([1, 2], [10, 14]), (B, 1))  # the second begins with a block
    spoilt = [x.at[:, :10].set(jnp.nan).reshape(B * T, -1, D) for x in (k, v)]
    attend = row_attention(PLAIN, jnp.asarray(segments), "chunked")(False)
    found, clean = (
        np.asarray(jax.jit(attend)(heads[0], *keys)).reshape(B, T, H, D)[:, 10:]
        for keys in (spoilt, heads[1:])
    )
    np.testing.assert_array_equal(found, clean)


@pytest.mark.optimized
def test_long_rows_are_chunked_of_themselves():
    random = np.random.default_rng(2)
    most = [random.standard_normal((MOST_DENSE_TOKENS + 1, n, D), np.float32) for n in (H, K, K)]

    def bits(tokens, how):
        attend = row_attention(WINDOW, jnp.ones((1, tokens), jnp.int32), how, block=50)(True)
        rows = (x[:tokens] for x in most)
        return np.asarray(jax.jit(attend)(*rows)).tobytes()

    for tokens, expected in ((MOST_DENSE_TOKENS, "dense"), (MOST_DENSE_TOKENS + 1, "chunked")):
        assert bits(tokens, "dense") != bits(tokens, "chunked")
        assert bits(tokens, "auto") == bits(tokens, expected)


def test_memory_grows_with_the_row_and_not_with_its_square():
    """Compiled for its shapes, and never run."""

    def working_bytes(tokens, how):
        attend = row_attention(PLAIN, jnp.ones((1, tokens), jnp.int32), how, block=128)(False)
        gradient = jax.grad(lambda args: attend(*args).sum())
        shapes = tuple(jax.ShapeDtypeStruct((tokens, n, D), jnp.float32) for n in (H, K, K))
        return jax.jit(gradient).lower(shapes).compile().memory_analysis().temp_size_in_bytes

    long, longer = (working_bytes(tokens, "chunked") for tokens in (4096, 8192))
    assert longer < 2.1 * long
    scores = 4 * H * 8192**2
    assert longer < scores / 50
    assert working_bytes(8192, "dense") > scores


@pytest.mark.optimized
def test_the_place_in_a_row_does_not_change_a_bit(heads):
    """As in the engine: only the token's own sequence and its position in it count."""
    moved = np.array([[7] * 4 + [8] * 20, SEGMENTS[0]], np.int32)
    swap = np.concatenate([np.r_[T + 20 : 2 * T], np.r_[T : T + 20], np.r_[:T]])
    before, after = (
        jax.jit(row_attention(PLAIN, jnp.asarray(segments), "paged")(False))
        for segments in (SEGMENTS, moved)
    )
    np.testing.assert_array_equal(
        np.asarray(after(*(x[swap] for x in heads))), np.asarray(before(*heads))[swap]
    )
