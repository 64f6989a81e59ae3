"""The size of a fleet against closed forms."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.fleet_size import (
    PRIOR_LOSSES,
    PRIOR_SECONDS,
    SURELY,
    WORTH,
    Hazard,
    Prices,
    Size,
    best_size,
)

NEVER = Hazard(losses=-PRIOR_LOSSES)  # a rate of 0


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


def test_some_of_the_paid_instances_start() -> None:
    """One loss in 1,000 s at work and 100 s to start: of eleven, ten work."""
    hazard = Hazard(losses=1e9 - PRIOR_LOSSES, seconds=1e12 - PRIOR_SECONDS)
    prices = Prices(reserved=5.0, instance=2.0, start_seconds=100.0, hazard=hazard)
    assert prices.at_work(11) == pytest.approx(10.0)


def test_what_a_step_costs() -> None:
    """50 s of 5 $/s, three instances of 2 $/s, and weights for 7 $ each, once and for each loss:
    a thousandth of them a second."""
    hazard = Hazard(losses=1e9 - PRIOR_LOSSES, seconds=1e12 - PRIOR_SECONDS)
    prices = Prices(reserved=5.0, instance=2.0, pull=7.0, start_seconds=10.0, hazard=hazard)
    whole = 50 * 5.0 + 3 * (50 * 2.0 + 7.0 * 1.05)
    assert prices.step(3, 50.0, 40.0) == pytest.approx(whole)
    # Let go for 40 s at 2 $/s, each saves 80 $ less 10 s of its start and its weights.
    rests = Prices(
        reserved=5.0, instance=2.0, pull=7.0, start_seconds=10.0, hazard=hazard, releases=True
    )
    assert rests.step(3, 50.0, 40.0) == pytest.approx(whole - 3 * (80.0 - 20.0 - 7.0))


@given(idle=st.floats(0, 1e4), start=st.floats(0, 1e3), price=st.floats(0, 9), pull=st.floats(0, 9))
def test_a_rest_is_worth_it_or_costs_nothing(
    idle: float, start: float, price: float, pull: float
) -> None:
    prices = Prices(reserved=1.0, instance=price, pull=pull, start_seconds=start, hazard=NEVER,
                    releases=True)  # fmt: skip
    saved, anew = prices.saved(idle), start * price + pull
    assert saved == (idle * price - anew if idle * price > SURELY * anew else 0.0)
    assert saved >= 0 and prices.saved(2 * idle) >= saved


@given(
    reserved=st.floats(1.0, 100.0),
    price=st.floats(0.05, 10.0),
    time=st.sampled_from([0.0, 5.0, 500.0]),
    start=st.integers(0, 40),
    train=st.floats(10.0, 400.0),
)
def test_a_liquid_s_optimum(
    reserved: float, price: float, time: float, start: int, train: float
) -> None:
    """Costs per token are convex in n, so the best size is found from any start.

    For one reserved engine, work W and training C, S(n) is max(C, (W + C)/(1 + n)).
    """
    work = 1000.0

    def predict(n: int) -> Size:
        return sized(n, max(train, (work + train) / (1 + n)), reserved + n * price)

    def cost(size: Size) -> float:
        return size.dollars + time * size.step_seconds

    found = best_size(predict, time=time, start=start, most=60)
    best = min((predict(n) for n in range(61)), key=cost)
    assert cost(found) <= (1 + 2 * WORTH) * cost(best)


def test_one_more_must_cost_less_per_token_than_all_do() -> None:
    """A tenth of the dollars more for a twentieth of the time less is left."""
    seconds = [100.0, 80.0, 76.0, 75.0, 74.5]

    def wanted(time: float) -> int:
        size = best_size(lambda n: sized(n, seconds[n], 10.0 + n), time=time, start=0, most=4)
        return size.instances

    assert wanted(0.0) == 1  # dollars: 1000, 880, 912, 975, 1043
    assert wanted(10.0) == 2  # and 10 $ for each second: 2000, 1680, 1672, 1725, 1788
    assert wanted(1e6) == 4


def test_of_what_costs_nothing_no_more_than_helps() -> None:
    def predict(n: int) -> Size:
        return sized(n, 100.0 / min(1 + n, 5), 10.0)

    assert best_size(predict, time=0.0, start=0, most=1000).instances == 4
    assert best_size(predict, time=0.0, start=900, most=1000).step_seconds == 20.0


def test_never_more_than_there_may_be() -> None:
    found = best_size(lambda n: sized(n, 100.0 / (1 + n), 10.0), time=0.0, start=9, most=2)
    assert found.instances == 2
