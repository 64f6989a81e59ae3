"""The synthetic market against the laws it is made of, and its fit against itself."""

import math
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.hazard import HOUR, draw, fit
from rlboost_jax.simulator.market.renewal import interrupted
from rlboost_jax.simulator.sim_config import HazardConfig

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


def exposure(rows, hours):
    """Machine-hours, by hand: of each name from its arrival to its loss or the end."""
    hours_of = {row.name: hours - row.milliseconds / HOUR for row in rows if row.action == "add"}
    for row in rows:
        if row.action == "remove":
            hours_of[row.name] -= hours - row.milliseconds / HOUR
    return sum(hours_of.values())


@pytest.mark.parametrize("seed", range(5))
def test_the_lifetime_is_the_censored_maximum_likelihood_estimate(seed):
    """Total time on test over losses, for exponential lives, some cut off (Epstein 1953)."""
    hours = 3.0
    rows = draw(CALM, hours=hours, seed=seed)
    losses = sum(row.action == "remove" for row in rows)
    assert losses < sum(row.action == "add" for row in rows)  # some are censored
    found = fit(rows, hours=hours)
    assert found.lifetime_hours == pytest.approx(exposure(rows, hours) / losses)
    assert found.machines == pytest.approx(exposure(rows, hours) / hours)


def test_who_is_never_lost_counts_for_as_long_as_it_was_watched():
    """Ignoring the censored would halve the lifetime: on average over short traces it is right."""
    hazard = replace(CALM, lifetime_hours=4.0)
    found = [fit(draw(hazard, hours=2.0, seed=s), hours=2.0).lifetime_hours for s in range(200)]
    assert np.exp(np.mean(np.log(found))) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize(
    "drawn",
    [
        HazardConfig(
            machines=12.0,
            lifetime_hours=1.5,
            batch_size=2.0,
            drought_hours=0.0,
            drought_gap_hours=0.0,
        ),
        HazardConfig(
            machines=10.0,
            lifetime_hours=0.5,
            batch_size=3.0,
            drought_hours=0.5,
            drought_gap_hours=1.0,
        ),
    ],
)
def test_a_fit_finds_what_a_market_was_drawn_with(drawn):
    found = fit(draw(drawn, hours=600, seed=2), hours=600)
    assert found.machines == pytest.approx(drawn.machines, rel=0.1)
    assert found.lifetime_hours == pytest.approx(drawn.lifetime_hours, rel=0.1)
    assert found.batch_size == pytest.approx(drawn.batch_size, rel=0.1)
    assert found.drought_hours == pytest.approx(drawn.drought_hours, rel=0.15)
    assert found.drought_gap_hours == pytest.approx(drawn.drought_gap_hours, rel=0.15)


def test_what_changes_in_losses_changes_no_arrival():
    """Arrivals, losses and droughts have streams of their own."""
    calm = draw(CALM, hours=20, seed=1)
    rough = draw(replace(CALM, batch_size=4.0), hours=20, seed=1)
    came = [[r for r in rows if r.action == "add"] for rows in (calm, rough)]
    assert came[0] == came[1] and calm != rough


def trace(*rows):
    return [TraceRow(milliseconds=t * HOUR, action=a, name=n) for t, a, n in rows]


TWO = trace((0.0, "add", "a"), (0.0, "add", "b"), (1.0, "remove", "a"), (2.0, "remove", "b"))


def test_a_fit_by_hand():
    found = fit(TWO, hours=2.0)
    assert (found.machines, found.lifetime_hours, found.batch_size) == (1.5, 1.5, 1.0)
    # Two hours later nobody has come, which says nothing of lifetimes.
    found = fit(TWO, hours=4.0)
    assert (found.machines, found.lifetime_hours) == (0.75, 1.5)


def test_a_batch_that_left_nobody_may_have_been_larger():
    rows = trace(
        *((0.0, "add", n) for n in "abcde"),
        (1.0, "remove", "a"),
        (1.0, "remove", "b"),
        *((2.0, "remove", n) for n in "cde"),
    )
    # One batch of 2 that ended, one of 3 that was cut off: p = 1 / (1 + 1 + 2).
    assert fit(rows, hours=3.0).batch_size == 4.0


def test_without_a_loss_nothing_is_known():
    with pytest.raises(ValueError, match="0 losses"):
        fit(trace((1.0, "add", "a")), hours=2.0)


@pytest.mark.parametrize("hours", [0.0, 1.5, math.inf])
def test_a_trace_is_as_long_as_its_rows_at_least(hours):
    with pytest.raises(ValueError, match="give its whole length"):
        fit(TWO, hours=hours)


def test_gaps_by_a_search_over_all_parameters():
    """What expectation and maximization find is a maximum: no neighbour is likelier."""
    random = np.random.default_rng(3)
    gaps = np.where(random.random(80) < 0.8, random.exponential(0.1, 80), random.exponential(2, 80))
    last = 9.0  # of the end, without an arrival
    found = interrupted(gaps, last)

    def likelihood(rate, on, off):
        """Likelihood of an interrupted Poisson process, by the matrix exponential of its law."""
        generator = np.array([[-rate - 1 / on, 1 / on], [1 / off, -1 / off]])
        values, vectors = np.linalg.eig(generator)
        left = vectors[0] * np.linalg.inv(vectors).sum(axis=1)  # starts on, as after an arrival
        survival = lambda t: (left * np.exp(np.outer(t, values))).sum(axis=1)  # noqa: E731
        density = lambda t: -(left * values * np.exp(np.outer(t, values))).sum(axis=1)  # noqa: E731
        return float(np.log(density(gaps)).sum() + np.log(survival(np.array([last])))[0])

    best = likelihood(found.rate, found.on, found.off)
    for name in ("rate", "on", "off"):
        for factor in (0.99, 1.01):
            other = {"rate": found.rate, "on": found.on, "off": found.off}
            other[name] *= factor
            assert likelihood(**other) < best
    assert interrupted(random.exponential(1.0, 400), 1.0) is None
