import itertools
import math
import statistics
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.algorithms.advantages import STD_FLOOR, group_advantages, whitened
from rlboost_jax.settings.algorithm_config import GroupAdvantage

# Of six digits: closer rewards than these are equal.
rewards = st.lists(st.floats(-10, 10).map(lambda v: round(v, 6)), min_size=2, max_size=16)


@given(rewards)
def test_is_the_difference_from_the_mean(values):
    mean = statistics.fmean(values)
    advantages = group_advantages(np.array(values), advantage="group_mean")
    np.testing.assert_allclose(advantages, [v - mean for v in values], atol=1e-12)


@pytest.mark.parametrize(
    ("deviation", "spread"), [("population", statistics.pstdev), ("sample", statistics.stdev)]
)
@given(values=rewards)
def test_the_trap_of_two_deviations_each_is_the_one_it_says(values, deviation, spread):
    mean = statistics.fmean(values)
    found = group_advantages(np.array(values), advantage="group_std", deviation=deviation)
    expected = [(v - mean) / (spread(values) + STD_FLOOR) for v in values]
    np.testing.assert_allclose(found, expected, atol=1e-9)


@given(rewards)
def test_leave_one_out_compares_with_the_others_only(values):
    advantages = group_advantages(np.array(values), advantage="leave_one_out")
    for i, value in enumerate(values):
        others = values[:i] + values[i + 1 :]
        np.testing.assert_allclose(advantages[i], value - statistics.fmean(others), atol=1e-9)


@given(rewards)
def test_pass_at_k_is_what_a_response_adds_to_the_best(values):
    advantages = group_advantages(np.array(values), advantage="pass_at_k")
    for i in range(len(values)):
        assert advantages[i] == max(values) - max(values[:i] + values[i + 1 :])


def test_pass_at_k_pushes_as_the_chance_of_any_success_does():
    """The mean of Σ A ∇log π over all groups of 3 is the gradient of the chance that one of them
    is right, by p: 3 (1 - p)²."""
    p, found = 0.3, 0.0
    for group in itertools.product((0.0, 1.0), repeat=3):
        chance = math.prod(p if r else 1 - p for r in group)
        scores = [1 / p if r else -1 / (1 - p) for r in group]
        found += chance * float(group_advantages(np.array(group), advantage="pass_at_k") @ scores)
    assert found == pytest.approx(3 * (1 - p) ** 2)


@pytest.mark.parametrize("advantage", get_args(GroupAdvantage))
@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_group_without_spread_teaches_exactly_nothing(size, advantage):
    # 0.1 is not a binary fraction: the mean of equal rewards need not equal them.
    assert (group_advantages(np.full(size, 0.1), advantage=advantage) == 0).all()


def test_one_success_in_eight():
    one = np.array([1.0] + 7 * [0.0])
    by_std = group_advantages(one, advantage="group_std")
    np.testing.assert_allclose(by_std[0], 7 / 8 / (7**0.5 / 8 + STD_FLOOR))
    np.testing.assert_allclose(by_std.sum(), 0, atol=1e-12)
    assert group_advantages(one, advantage="group_mean").tolist() == [0.875] + 7 * [-0.125]
    others = group_advantages(one, advantage="leave_one_out")
    np.testing.assert_allclose(others, [1.0] + 7 * [-1 / 7])


def test_whitening_by_hand():
    """Two responses of one and three tokens: the mean of 4, 0, 0, 0 is 1, the variance 3."""
    first, second = whitened([np.array([4.0]), np.zeros(3)])
    np.testing.assert_allclose(first, [3 / 3**0.5])
    np.testing.assert_allclose(second, [-1 / 3**0.5] * 3)


def test_whitening_what_is_equal_teaches_exactly_nothing():
    assert all((part == 0).all() for part in whitened([np.full(2, 0.1), np.full(5, 0.1)]))


@given(st.lists(st.lists(st.floats(-5, 5), min_size=1, max_size=5), min_size=1, max_size=6))
def test_the_trap_of_whitening_every_token_of_the_batch_has_the_same_weight(values):
    parts = whitened([np.array(part) for part in values])
    tokens = [x for part in values for x in part]
    mean, variance = statistics.fmean(tokens), statistics.pvariance(tokens)
    if min(tokens) != max(tokens):
        expected = [(x - mean) / (variance + 1e-8) ** 0.5 for x in tokens]
        np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-6)
