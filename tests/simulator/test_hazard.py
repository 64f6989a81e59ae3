"""The synthetic market against the laws it is made of, and its fit against itself."""

import numpy as np
import pytest

from rlboost_jax.config.traces import TraceRow
from rlboost_jax.simulator.hazard import HOUR, draw, fit
from rlboost_jax.simulator.records import HazardConfig

CALM = HazardConfig(
    machines=10.0, lifetime_hours=0.5, batch_size=1.0, drought_hours=0.0, drought_gap_hours=0.0
)


def levels(rows, hours):
    """Machines on loan at 4,000 moments."""
    times = np.array([row.milliseconds / HOUR for row in rows])
    signs = np.cumsum([1 if row.action == "add" else -1 for row in rows])
    moments = np.linspace(1.0, hours, 4000)
    return signs[np.searchsorted(times, moments, side="right") - 1]


def test_without_correlation_it_is_an_mm_infinity_queue():
    alive = levels(draw(CALM, hours=400, seed=1), 400)
    assert alive.mean() == pytest.approx(10, rel=0.08)
    assert alive.var() == pytest.approx(10, rel=0.25)  # Poisson


def test_batches_and_droughts_widen_the_spread_and_keep_the_mean():
    rough = HazardConfig(
        machines=10.0, lifetime_hours=0.5, batch_size=3.0, drought_hours=0.5, drought_gap_hours=1.0
    )
    alive = levels(draw(rough, hours=400, seed=1), 400)
    assert alive.mean() == pytest.approx(10, rel=0.15)
    assert alive.var() > 25


def test_the_same_seed_gives_the_same_market():
    assert draw(CALM, hours=5, seed=3) == draw(CALM, hours=5, seed=3) != draw(CALM, hours=5, seed=4)


def test_a_fit_finds_what_a_market_was_drawn_with():
    drawn = HazardConfig(
        machines=12.0, lifetime_hours=1.5, batch_size=2.0, drought_hours=0.0, drought_gap_hours=0.0
    )
    found = fit(draw(drawn, hours=500, seed=2))
    assert found.machines == pytest.approx(12, rel=0.1)
    assert found.lifetime_hours == pytest.approx(1.5, rel=0.1)
    assert found.batch_size == pytest.approx(2, rel=0.1)


def test_a_fit_by_hand():
    rows = [(0.0, "add", "a"), (0.0, "add", "b"), (1.0, "remove", "a"), (2.0, "remove", "b")]
    found = fit([TraceRow(milliseconds=t * HOUR, action=a, name=n) for t, a, n in rows])
    assert (found.machines, found.lifetime_hours, found.batch_size) == (1.5, 1.5, 1.0)


def test_without_a_loss_nothing_is_known():
    with pytest.raises(ValueError, match="0 losses"):
        fit([TraceRow(milliseconds=HOUR, action="add", name="a")])
