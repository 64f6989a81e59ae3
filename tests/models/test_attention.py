"""Both ways of attending over packed rows, against a loop in NumPy float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.attention import row_attention

B, T, H, K, D = 2, 24, 4, 2, 8
SEGMENTS = np.array(
    [[1] * 9 + [2] * 4 + [3] * 8 + [0] * 3, [1] * 20 + [2] * 4], np.int32
)  # of uneven lengths, with padding


@pytest.fixture(scope="module")
def heads() -> tuple[jax.Array, jax.Array, jax.Array]:
    q, k, v = (
        jax.random.normal(key, (B * T, n, D))
        for key, n in zip(jax.random.split(jax.random.key(0), 3), (H, K, K), strict=True)
    )
    return 3.0 * q, k, v


def by_hand(q, k, v) -> np.ndarray:
    q, k, v = (np.asarray(x, np.float64).reshape(B, T, -1, D) for x in (q, k, v))
    out = np.zeros((B, T, H, D))
    for b, t, h in np.ndindex(B, T, H):
        seen = [s for s in range(t + 1) if SEGMENTS[b, s] == SEGMENTS[b, t]]
        key_head = h // (H // K)
        scores = np.array([q[b, t, h] @ k[b, s, key_head] for s in seen]) / np.sqrt(D)
        weights = np.exp(scores - scores.max())
        out[b, t, h] = weights @ v[b, seen, key_head] / weights.sum()
    return out.reshape(B * T, H, D)


@pytest.mark.parametrize("how", ["dense", "paged"])
def test_a_token_sees_its_own_segment_up_to_itself(heads, how):
    out = jax.jit(row_attention(jnp.asarray(SEGMENTS), how))(*heads)
    np.testing.assert_allclose(out, by_hand(*heads), atol=2e-6)


def test_the_gradient_is_that_of_the_dense_form(heads):
    upstream = jax.random.normal(jax.random.key(1), (B * T, H, D))

    def gradients(how):
        attend = row_attention(jnp.asarray(SEGMENTS), how)
        return jax.grad(lambda args: (attend(*args) * upstream).sum())(heads)

    for paged, dense in zip(gradients("paged"), gradients("dense"), strict=True):
        np.testing.assert_allclose(paged, dense, atol=1e-5)


def test_the_place_in_a_row_does_not_change_a_bit(heads):
    """As in the engine: only the token's own sequence and its position in it count."""
    attend = jax.jit(row_attention(jnp.asarray(SEGMENTS), "paged"))
    moved = np.array([[7] * 4 + [8] * 20, SEGMENTS[0]], np.int32)
    swap = np.concatenate([np.r_[T + 20 : 2 * T], np.r_[T : T + 20], np.r_[:T]])
    before = attend(*heads)
    after = jax.jit(row_attention(jnp.asarray(moved), "paged"))(*(x[swap] for x in heads))
    np.testing.assert_array_equal(np.asarray(after), np.asarray(before)[swap])
