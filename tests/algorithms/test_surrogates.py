"""Literal cases; `tests/learner/programs/test_objective.py` has the loops and the slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.surrogates import cispo, clipped, reinforce, sapo

RATIOS = jnp.array([0.5, 0.9, 1.0, 1.1, 2.0, 4.0])


def total(surrogate):
    return lambda *args, **options: surrogate(*args, **options)[0].sum()


@pytest.mark.parametrize(
    ("advantage", "expected", "stopped"),
    [
        (2.0, [1.0, 1.8, 2.0, 2.2, 2.56, 2.56], [0, 0, 0, 0, 1, 1]),
        (-2.0, [-1.6, -1.8, -2.0, -2.2, -4.0, -8.0], [1, 0, 0, 0, 0, 0]),
    ],
)
def test_clip_higher_by_hand(advantage, expected, stopped):
    advantages = jnp.full(6, advantage)
    values, without = clipped(RATIOS, advantages, clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert without.astype(int).tolist() == stopped
    slopes = jax.grad(total(clipped))(RATIOS, advantages, clip_low=0.2, clip_high=0.28)
    np.testing.assert_array_equal(slopes == 0, without)


def test_the_trap_of_the_dual_clip_it_bounds_negative_advantages_only():
    bounds = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    worse, stopped = clipped(RATIOS, jnp.full(6, -1.0), **bounds)
    np.testing.assert_allclose(worse, [-0.8, -0.9, -1.0, -1.1, -2.0, -3.0], rtol=1e-6)
    assert stopped.astype(int).tolist() == [1, 0, 0, 0, 0, 1]
    better, _ = clipped(RATIOS, jnp.full(6, 1.0), **bounds)
    plain, _ = clipped(RATIOS, jnp.full(6, 1.0), clip_low=0.2, clip_high=0.2)
    assert better.tolist() == plain.tolist()


def test_the_trap_of_cispo_clip_high_is_an_offset_and_no_token_loses_its_gradient():
    """clip_high=4 is a weight of at most 5, which TRL calls epsilon_high=5."""
    logprobs, advantages = jnp.full(3, -0.5), jnp.array([2.0, 2.0, -1.0])
    ratio = jnp.array([0.1, 7.0, 7.0])

    def value(logprobs):
        return cispo(ratio, logprobs, advantages, clip_low=1.0, clip_high=4.0)[0].sum()

    np.testing.assert_allclose(jax.grad(value)(logprobs), [0.1 * 2, 5 * 2, 5 * -1], rtol=1e-6)
    np.testing.assert_allclose(value(logprobs), -0.5 * (0.2 + 10 - 5), rtol=1e-6)
    through = jax.grad(lambda r: total(cispo)(r, logprobs, advantages, clip_low=1.0, clip_high=4.0))
    assert through(ratio).tolist() == [0, 0, 0], "the weight itself has no gradient"


def test_the_trap_of_sapo_the_sign_of_the_advantage_chooses_the_temperature():
    advantages = jnp.array([1.0, -1.0, 0.0])
    values, _ = sapo(
        jnp.full(3, 2.0), advantages, temperature_positive=1.0, temperature_negative=2.0
    )
    expected = [4 / (1 + np.exp(-1.0)), -2 / (1 + np.exp(-2.0)), 0.0]
    np.testing.assert_allclose(values, expected, rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_sapo_has_slope_one_on_policy(temperature):
    slope = jax.grad(total(sapo))(
        jnp.ones(1),
        jnp.array([1.5]),
        temperature_positive=temperature,
        temperature_negative=9.0,
    )
    np.testing.assert_allclose(slope, 1.5, rtol=1e-6)


def test_reinforce_is_the_logprob_times_the_advantage():
    values, _ = reinforce(jnp.array([-1.0, -2.0]), jnp.array([3.0, -0.5]))
    assert values.tolist() == [-3.0, 1.0]
