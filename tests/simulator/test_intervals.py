"""Intervals against Student's law by simulation, and what has none."""

import math
import statistics

import numpy as np
import pytest

from rlboost_jax.simulator.intervals import half_width, mean, with_interval


@pytest.mark.parametrize("count", [2, 4, 10])
def test_it_holds_the_truth_19_times_of_20(count):
    random = np.random.default_rng(7)
    held = 0
    for values in random.normal(3.0, 2.0, (4000, count)).tolist():
        held += abs(statistics.fmean(values) - 3.0) <= half_width(values)
    assert held / 4000 == pytest.approx(0.95, abs=0.011)  # three standard errors


def test_by_hand():
    # Deviations -1, 0, 1: variance 1; t with 2 degrees of freedom is 4.303.
    assert half_width([4.0, 5.0, 6.0]) == pytest.approx(4.303 / math.sqrt(3))
    assert with_interval("x", [4.0, 5.0, 6.0]) == {
        "x": 5.0,
        "x_half_width": pytest.approx(4.303 / math.sqrt(3)),
    }


def test_many_are_normal():
    values = [float(i % 2) for i in range(100)]
    assert half_width(values) == pytest.approx(1.96 * statistics.stdev(values) / 10)


def test_what_there_is_not_has_neither():
    assert mean([1.0, None]) is mean([]) is mean([1.0, math.inf]) is None
    assert half_width([1.0]) is half_width([1.0, None, 2.0]) is None
