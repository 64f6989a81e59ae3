"""What a server may use: over any orders, steps and hours."""

import math

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.rollout.sharing.device_budget import (
    FREEZE_SECONDS,
    DeviceShare,
    allowed,
    ordered,
    passed,
    stepped,
    whole,
)

MOST = DeviceShare(slots=8, pool_bytes=800)
shares = st.builds(DeviceShare, slots=st.integers(0, 8), pool_bytes=st.integers(0, 800))
events = st.one_of(shares, st.just("step"), st.floats(0.1, 2 * FREEZE_SECONDS))


@given(st.lists(events, max_size=30))
def test_smaller_at_once_and_larger_with_the_next_step_only(happened: list[object]) -> None:
    budget, now, shrank_in_step = whole(MOST), 0.0, False
    for event in happened:
        before = budget
        if isinstance(event, DeviceShare):
            budget = ordered(budget, event, now)
            assert budget.granted.within(event), "smaller at once"
            assert budget.wanted == event
            if event.meet(before.granted) != before.granted:
                shrank_in_step = True
            if shrank_in_step:
                assert budget.granted.within(before.granted), "no growth in the step"
            else:
                assert budget.granted == event
        elif event == "step":
            budget, shrank_in_step = stepped(budget), False
            assert budget.granted == budget.wanted == before.wanted
        else:
            assert isinstance(event, float)
            now += event
            budget = passed(budget, now)
            if budget != before:
                assert before.granted != before.wanted == budget.granted
                shrank_in_step = False
        assert budget.frozen == shrank_in_step
        assert budget.granted.within(budget.wanted)


def test_a_run_without_a_next_step_gets_its_server_back() -> None:
    none = DeviceShare(slots=0, pool_bytes=800)
    budget = ordered(ordered(whole(MOST), none, 5.0), MOST, 6.0)
    assert budget.thaws_at == 5.0 + FREEZE_SECONDS
    assert passed(budget, 5.0 + FREEZE_SECONDS - 0.01) == budget
    assert passed(budget, 5.0 + FREEZE_SECONDS).granted == MOST
    assert ordered(whole(MOST), none, 5.0).thaws_at == math.inf, "nothing to grow to"


@given(st.lists(shares, max_size=4))
def test_all_tenants_have_what_they_ordered(orders: list[DeviceShare]) -> None:
    left = allowed(MOST, orders)
    assert all(left.within(order) for order in (*orders, MOST))
    assert left.slots in {MOST.slots, *(o.slots for o in orders)}
