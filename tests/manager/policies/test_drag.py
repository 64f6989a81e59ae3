"""How late a fleet is after the handover: by hand, and against the newsvendor's closed form."""

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.drag import LEAST, LEAST_WEIGHT, MOST, Drag


def shown(drag: Drag, value: float, planned: float = 1.0) -> None:
    """A window closed at 100 s, groups complete 200 s later: what of these showed that drag."""
    should = 100.0 + (value / planned - 1.0) * 200.0
    drag.learn(planned, closed=100.0, should=should, critical=300.0)


def test_the_first_steps_count_alike_with_what_was_assumed() -> None:
    drag = Drag()
    shown(drag, 1.3)
    assert drag.value == pytest.approx((1.0 + 1.3) / 2)
    shown(drag, 1.2, planned=1.1)
    assert drag.value == pytest.approx((1.0 + 1.3 + 1.2) / 3)


def test_later_ones_count_for_little_each() -> None:
    drag = Drag()
    for _ in range(50):
        shown(drag, 1.2)
    shown(drag, 1.0)
    assert drag.value == pytest.approx(1.2 - 0.2 * LEAST_WEIGHT, abs=1e-3)


def test_a_fleet_that_was_there_in_time_says_nothing() -> None:
    drag = Drag()
    drag.learn(1.0, closed=100.0, should=50.0, critical=90.0)
    assert drag.value == 1.0


@given(st.lists(st.floats(-1e6, 1e6), max_size=30))
def test_no_step_takes_it_out_of_bounds(shoulds: list[float]) -> None:
    drag = Drag()
    for should in shoulds:
        drag.learn(1.0, closed=10.0, should=should, critical=20.0)
        assert LEAST <= drag.value <= MOST
        assert 0.0 < drag.deviation < 0.2


@pytest.mark.parametrize(("reserved", "preemptible"), [(4, 1), (4, 4), (4, 12)])
def test_planned_with_at_the_least_expected_loss(reserved: int, preemptible: int) -> None:
    """By integration over a normal drag: too early costs reserved / preemptible times as much."""
    drag = Drag()
    for _ in range(200):
        shown(drag, 1.05)
        shown(drag, 0.95)
    law = NormalDist(drag.value, drag.value * drag.deviation)
    points = [law.inv_cdf((n + 0.5) / 4000) for n in range(4000)]

    def loss(planned: float) -> float:
        late = reserved / preemptible
        return sum(max(planned - x, late * (x - planned)) for x in points)

    best = min((loss(drag.value * (0.8 + 0.001 * n)), 0.8 + 0.001 * n) for n in range(401))[1]
    assert drag.hedged(reserved, preemptible) / drag.value == pytest.approx(best, abs=0.002)


def test_without_one_side_there_is_nothing_to_hedge() -> None:
    drag = Drag()
    shown(drag, 1.4)
    assert drag.hedged(4, 0) == drag.hedged(0, 4) == drag.value
    assert math.isfinite(drag.hedged(1000, 1))
