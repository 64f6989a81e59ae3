"""The forecast of a run's cost, worked out by hand."""

import pytest

from rlboost_jax.observe.cost import RECENT, Forecast


def row(dollars):
    return {"cost_dollars": dollars}


def test_the_rest_costs_what_the_last_steps_did():
    forecast = Forecast(4)
    assert forecast.after(row(5.0)) == 20.0  # nothing else is known
    assert forecast.after(row(1.0)) == 5 + 1 + 2 * 1  # the first has paid for the start
    assert forecast.after(row(3.0)) == 5 + 1 + 3 + 2
    assert forecast.after(row(2.0)) == 11.0  # all there is


def test_what_was_long_ago_says_nothing():
    forecast = Forecast(100, [row(9.0)] * 20)
    for _ in range(RECENT):
        last = forecast.after(row(1.0))
    assert last == 20 * 9 + RECENT + (100 - 20 - RECENT) * 1


def test_a_run_that_goes_on_has_paid_already():
    assert Forecast(3, [row(2.0), row(None)]).after(row(1.0)) == pytest.approx(3.0)
