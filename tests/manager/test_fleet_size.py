"""The size of a fleet against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.fleet_size import (
    FORGONE,
    PRIOR_LOSSES,
    PRIOR_SECONDS,
    Hazard,
    Prices,
    Size,
    best_size,
)


def sized(instances: int, seconds: float, per_second: float) -> Size:
    return Size(
        instances=instances, step_seconds=seconds, window_seconds=0.0, tokens=1000.0,
        dollars=seconds * per_second,
    )  # fmt: skip


def test_the_posterior_of_a_rate() -> None:
    """Gamma(a, b) after k losses in t seconds is Gamma(a + k, b + t)."""
    found = Hazard(losses=4.0, seconds=36_000.0)
    shape, scale = PRIOR_LOSSES + 4.0, PRIOR_SECONDS + 36_000.0
    assert found.rate == pytest.approx(shape / scale)
    assert found.deviation == pytest.approx(math.sqrt(shape) / scale)


def test_an_instance_is_paid_for_while_its_successor_starts() -> None:
    """One loss in 1,000 s and 100 s to start: a tenth more."""
    hazard = Hazard(losses=1e9 - PRIOR_LOSSES, seconds=1e12 - PRIOR_SECONDS)
    prices = Prices(reserved=5.0, instance=2.0, start_seconds=100.0, hazard=hazard)
    assert prices.per_second(3) == pytest.approx(5.0 + 3 * 2.0 * 1.1)


@given(
    reserved=st.floats(1.0, 100.0),
    price=st.floats(0.05, 10.0),
    start=st.integers(0, 40),
    train=st.floats(10.0, 400.0),
)
def test_a_liquid_s_optimum(reserved: float, price: float, start: int, train: float) -> None:
    """With one reserved engine, work W and training C, S(n) is max(C, (W + C)/(1 + n)): the
    dollars are convex in n, and least where the closed form's neighbours are no cheaper."""
    work = 1000.0

    def foresee(n: int) -> Size:
        return sized(n, max(train, (work + train) / (1 + n)), reserved + n * price)

    found = best_size(foresee, start=start, most=60)
    every = [foresee(n) for n in range(61)]
    most = max(size.tokens_per_dollar for size in every)
    good = [s for s in every if s.tokens_per_dollar >= (1 - FORGONE) * most]
    assert found.tokens_per_dollar >= (1 - FORGONE) * most
    assert found.step_seconds <= min(s.step_seconds for s in good) * 1.01


def test_one_more_must_cost_less_per_token_than_all_do() -> None:
    """A tenth of the dollars more for a twentieth of the time less is left."""
    seconds = [100.0, 80.0, 76.0, 75.0, 74.5]
    found = best_size(lambda n: sized(n, seconds[n], 10.0 + n), start=0, most=4)
    # dollars: 1000, 880, 912, 975
    assert found.instances == 1


def test_of_what_costs_nothing_no_more_than_helps() -> None:
    def foresee(n: int) -> Size:
        return sized(n, 100.0 / min(1 + n, 5), 10.0)

    assert best_size(foresee, start=0, most=1000).instances == 4
    assert best_size(foresee, start=900, most=1000).step_seconds == 20.0


def test_never_more_than_there_may_be() -> None:
    assert best_size(lambda n: sized(n, 100.0 / (1 + n), 10.0), start=9, most=2).instances == 2
