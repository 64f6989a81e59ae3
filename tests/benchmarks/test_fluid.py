"""The bound of benchmarks/loop.py against its closed form, and where the form is plain to see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fluid import step_bound

RATE = 4_000.0
calm = {"train_seconds": 1.5, "reserved_rate": 16_000.0, "instance_rate": RATE, "start": 100.0}


@given(
    tokens=st.floats(1e3, 1e6),
    train=st.floats(0.0, 10.0),
    reserved=st.floats(1e3, 1e5),
    instances=st.integers(0, 20),
)
def test_a_calm_fleet_has_the_closed_form(tokens, train, reserved, instances):
    # t + c = (W - R t) / (n r), where that t is not negative.
    remote = instances * RATE
    window = max(0.0, (tokens - remote * train) / (reserved + remote))
    seconds, found = step_bound(
        tokens=tokens,
        train_seconds=train,
        reserved_rate=reserved,
        instance_rate=RATE,
        start=7.0,
        changes=[(0.0, instances)],
    )
    assert found == pytest.approx(window, abs=1e-6)
    assert seconds == pytest.approx(window + train, abs=1e-6)


def test_without_instances_the_reserved_devices_generate_and_then_train():
    assert step_bound(tokens=16_000, **calm, changes=[(0.0, 0)]) == pytest.approx((2.5, 1.0))


def test_enough_instances_leave_the_training_time():
    assert step_bound(tokens=6_000, **calm, changes=[(0.0, 1)]) == (1.5, 0.0)


def test_an_instance_counts_while_it_is_there():
    # One instance from 0.5 s to 1.5 s of the step: 4,000 of the 20,000 tokens.
    changes = [(0.0, 0), (100.5, 1), (101.5, 0)]
    assert step_bound(tokens=20_000, **calm, changes=changes) == pytest.approx((2.5, 1.0))


def test_one_that_comes_after_the_end_changes_nothing():
    late = [(0.0, 0), (103.0, 8)]
    assert step_bound(tokens=16_000, **calm, changes=late) == pytest.approx((2.5, 1.0))
