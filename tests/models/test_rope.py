from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.models.rope import FINE, Rope, cos_sin, frequencies, turn
from rlboost_jax.sequences.shared_limits import MAX_POSITIONS

THETA = 10_000.0


@partial(jax.jit, static_argnames="theta")
def rotate(x, positions, *, theta=THETA):
    return turn(x, *cos_sin(positions, x.shape[-1], Rope(theta)))


def rotate_by_hand(x, positions, theta):
    """Pairs as complex numbers, turned in float64."""
    half = x.shape[-1] // 2
    pairs = x[..., :half].astype(np.float64) + 1j * x[..., half:].astype(np.float64)
    angles = positions[:, None] * theta ** (-np.arange(half) / half)
    turned = pairs * np.exp(1j * angles)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


@pytest.mark.parametrize("theta", [10_000.0, 1_000_000.0])
@pytest.mark.parametrize("start", [0, FINE - 4, 40_960, MAX_POSITIONS - 8])
def test_turns_pairs_by_the_position(start, theta):
    x = np.random.default_rng(0).normal(size=(8, 2, 16)).astype(np.float32)
    positions = np.arange(start, start + 8)
    turned = rotate(jnp.asarray(x), jnp.asarray(positions), theta=theta)
    np.testing.assert_allclose(turned, rotate_by_hand(x, positions, theta), atol=2e-6)


def test_scores_depend_on_the_distance_only():
    q, k = jax.random.normal(jax.random.key(0), (2, 1, 1, 16))

    def score(i, j):
        turned = (rotate(x, jnp.array([at]), theta=THETA) for x, at in ((q, i), (k, j)))
        return jnp.vdot(*turned)

    np.testing.assert_allclose(score(7, 3), score(1007, 1003), atol=1e-5)
    np.testing.assert_allclose(score(7, 3), score(70_007, 70_003), atol=1e-5)


@pytest.mark.optimized
def test_short_contexts_have_the_bits_of_the_float64_table():
    positions = np.arange(FINE)
    expected = THETA ** (-np.arange(4, dtype=np.float64) * 2 / 8)
    angles = positions[:, None] * expected
    cos, sin = jax.jit(lambda p: cos_sin(p, 8, Rope(THETA)))(jnp.asarray(positions))
    np.testing.assert_array_equal(cos, np.cos(angles).astype(np.float32))
    np.testing.assert_array_equal(sin, np.sin(angles).astype(np.float32))


@pytest.mark.optimized
def test_bits_do_not_depend_on_the_neighbours():
    x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 2, 16), np.float32))
    positions = jnp.arange(64) * 37
    together = rotate(x, positions, theta=THETA)
    shuffled = np.random.default_rng(0).permutation(64)
    np.testing.assert_array_equal(
        rotate(x[shuffled], positions[shuffled], theta=THETA), together[shuffled]
    )


def test_linear_scaling_divides_every_position():
    scaled, plain = frequencies(Rope(THETA, "linear", 8.0), 16), frequencies(Rope(THETA), 16)
    np.testing.assert_allclose(scaled, plain / 8)
    np.testing.assert_allclose(plain, [THETA ** (-i / 8) for i in range(8)])


def test_yarn_scaling_by_pair():
    """As its authors wrote it: a ramp over the pairs between two numbers of turns."""
    rope = Rope(10_000.0, "yarn", 4.0, 1.0, 32.0, 2048)
    turns = [2048 * f / (2 * np.pi) for f in frequencies(Rope(10_000.0), 128)]
    first = max(i for i, n in enumerate(turns) if n >= 32)
    last = min(i for i, n in enumerate(turns) if n <= 1)
    expected = []
    for i, frequency in enumerate(frequencies(Rope(10_000.0), 128)):
        slowed = min(max((i - first) / (last - first), 0), 1)
        expected.append(frequency / 4 * slowed + frequency * (1 - slowed))
    np.testing.assert_allclose(frequencies(rope, 128), expected, rtol=1e-12)
    assert 0 < first < last < 63


def test_the_attention_factor_counts_once_at_any_position():
    positions = jnp.array([0, 5, FINE, 3 * FINE + 7])
    plain, scaled = (cos_sin(positions, 16, Rope(THETA, attention_factor=f)) for f in (1.0, 1.25))
    for before, after in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(after, 1.25 * before, rtol=1e-6)


def test_llama3_scaling_by_wavelength():
    """As Meta wrote it: three cases of a wavelength."""
    rope = Rope(500_000.0, "llama3", 8.0, 1.0, 4.0, 8192)
    expected = []
    for frequency in frequencies(Rope(500_000.0), 128):
        wavelength = 2 * np.pi / frequency
        if wavelength < 8192 / 4:
            expected.append(frequency)
        elif wavelength > 8192 / 1:
            expected.append(frequency / 8)
        else:
            smooth = (8192 / wavelength - 1) / (4 - 1)
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    np.testing.assert_allclose(frequencies(rope, 128), expected, rtol=1e-12)
    assert (
        len({round(e / p, 6) for e, p in zip(expected, frequencies(Rope(5e5), 128), strict=True)})
        > 3
    )
