import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.algorithms.advantages import STD_FLOOR, group_advantages

rewards = st.lists(st.floats(-10, 10), min_size=2, max_size=16)


@given(rewards)
def test_is_the_difference_from_the_mean(values):
    mean = statistics.fmean(values)
    advantages = group_advantages(np.array(values), normalize_by_std=False)
    np.testing.assert_allclose(advantages, [v - mean for v in values], atol=1e-12)


@given(rewards)
def test_is_in_units_of_the_population_deviation(values):
    mean, deviation = statistics.fmean(values), statistics.pstdev(values)
    advantages = group_advantages(np.array(values), normalize_by_std=True)
    expected = [(v - mean) / (deviation + STD_FLOOR) for v in values]
    np.testing.assert_allclose(advantages, expected, atol=1e-9)


@pytest.mark.parametrize("normalize_by_std", [True, False])
@pytest.mark.parametrize("size", [1, 3, 8])
def test_a_group_without_spread_teaches_exactly_nothing(size, normalize_by_std):
    # 0.1 is not a binary fraction: the mean of equal rewards need not equal them.
    advantages = group_advantages(np.full(size, 0.1), normalize_by_std=normalize_by_std)
    assert (advantages == 0).all()


def test_one_success_in_eight():
    advantages = group_advantages(np.array([1.0] + 7 * [0.0]), normalize_by_std=True)
    np.testing.assert_allclose(advantages[0], 7 / 8 / (7**0.5 / 8 + STD_FLOOR))
    np.testing.assert_allclose(advantages.sum(), 0, atol=1e-12)
