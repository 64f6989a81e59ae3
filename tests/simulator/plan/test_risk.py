"""Forecasts' spread against Student's table, and against runs that are drawn."""

import math

import numpy as np
import pytest

from rlboost_jax.simulator.plan.risk import missed, spread


@pytest.mark.parametrize(("count", "quantile"), [(2, 12.706), (3, 4.303), (6, 2.571)])
def test_half_widths_are_students(count, quantile):
    values = [10.0 + i for i in range(count)]
    deviation = math.sqrt(sum((v - np.mean(values)) ** 2 for v in values) / (count - 1))
    found = spread(values, stretches=1.0)
    expected = quantile * deviation * math.sqrt(1 + 1 / count)
    assert found.half_width == pytest.approx(expected, rel=0.08)  # of draws
    assert (found.mean, found.worst) == (np.mean(values), max(values))
    assert missed(values, found.mean, stretches=1.0) == pytest.approx(0.5, abs=0.01)
    edge = found.mean + found.half_width
    assert missed(values, edge, stretches=1.0) == pytest.approx(0.025, abs=0.004)


@pytest.mark.parametrize("stretches", [1.0, 8.0])
def test_it_covers_runs_as_often_as_it_says(stretches):
    """Stretches of normal length: of many forecasts from four of them, a twentieth is missed."""
    random = np.random.default_rng(0)
    hits = 0
    for _ in range(600):
        seen = random.normal(10.0, 2.0, size=4) * stretches
        came = random.normal(10.0, 2.0, size=int(stretches)).sum()
        found = spread(seen.tolist(), stretches=stretches)
        hits += abs(came - found.mean) < found.half_width
    assert hits / 600 == pytest.approx(0.95, abs=0.025)


def test_one_seed_tells_no_spread():
    assert spread([3.0], stretches=5.0).half_width == 0.0
    assert [missed([3.0], limit, stretches=5.0) for limit in (2.9, 3.1)] == [1.0, 0.0]
