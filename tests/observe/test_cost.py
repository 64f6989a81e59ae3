"""The forecast of a run's cost, worked out by hand."""

import pytest

from rlboost_jax.observe.cost import RECENT, CostForecast


def rows(*dollars, first=0):
    return [{"step": first + place, "cost_dollars": cost} for place, cost in enumerate(dollars)]


def forecasts(num_steps, *dollars, first=0):
    forecast = CostForecast(num_steps)
    return [forecast.after(row) for row in rows(*dollars, first=first)]


def test_the_rest_costs_what_the_last_steps_did():
    """The first has paid for the start: nothing is known of the others until there is one."""
    assert forecasts(4, 5.0, 1.0, 3.0, 2.0) == [None, 5 + 1 + 2 * 1, 5 + 1 + 3 + 2, 11.0]


def test_a_fork_has_the_steps_of_before_behind_it():
    assert forecasts(10, 5.0, 1.0, first=6) == [None, 5 + 1 + 2 * 1]


def test_what_costs_nothing_has_no_forecast():
    assert forecasts(4, 0.0, 0.0, None) == [None] * 3


def test_what_was_long_ago_says_nothing():
    forecast = CostForecast(100, rows(*[9.0] * 20))
    for row in rows(*[1.0] * RECENT, first=20):
        last = forecast.after(row)
    assert last == 20 * 9 + RECENT + (100 - 20 - RECENT) * 1


def test_a_run_that_goes_on_has_paid_already():
    (last,) = rows(1.0, first=2)
    assert CostForecast(3, rows(2.0, None)).after(last) == pytest.approx(3.0)
