"""Algorithm 1 against a table worked out by hand, and on a plant whose optimum is known."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.window import Observation, Seeding, initial, recall, update
from rlboost_jax.messages import WindowState


def seen(**changes: object) -> Observation:
    values = dict(
        train_wait=0.0, remote_wait=0.0, train=10.0, rollout=20.0,
        instances=2.0, instances_next=2, churn=False, num_reserved=1,
    )  # fmt: skip
    return Observation(**{**values, **changes})  # type: ignore[arg-type]


def test_a_table_worked_out_by_hand() -> None:
    """η = 3. Columns: w_train, w_remote, n, n̂, churn → T_seed, memory, N_prem."""
    table = [
        # calm with two: 6 + (9 − 0)/3 = 9; (20·2 + 6·1)/10 = 4.6 → 5
        (9.0, 0.0, 2.0, 2, False, 9.0, {2: 9.0}, 5),
        # calm with two: 9 + (0 − 6)/3 = 7; (40 + 9)/10 = 4.9 → 5
        (0.0, 6.0, 2.0, 2, False, 7.0, {2: 7.0}, 5),
        # one is lost half-way: 7 + 3/3 = 8, nothing is known of one; (20·1.5 + 7)/10 → 4
        (3.0, 0.0, 1.5, 1, True, 8.0, {2: 7.0}, 4),
        # calm with one: 8 + 12/3 = 12; (20 + 8)/10 → 3
        (12.0, 0.0, 1.0, 1, False, 12.0, {2: 7.0, 1: 12.0}, 3),
        # the other is back: two were remembered with 7, whatever this step says; (30 + 12)/10 → 5
        (0.0, 0.0, 1.5, 2, True, 7.0, {2: 7.0, 1: 12.0}, 5),
    ]
    state = initial(6.0)
    for wait, remote, mean, after, churn, seconds, memory, cap in table:
        observation = seen(
            train_wait=wait, remote_wait=remote, instances=mean, instances_next=after, churn=churn
        )
        state = update(state, observation, eta=3.0, memory=True)
        assert state == WindowState(seconds=seconds, memory=memory, instance_cap=cap)


def test_without_memory() -> None:
    state = WindowState(seconds=6.0, memory={2: 1.0}, instance_cap=1)
    assert update(state, seen(train_wait=3.0), eta=3.0, memory=False).seconds == 7.0


def test_a_step_without_preemptible_instances_changes_nothing() -> None:
    state = WindowState(seconds=6.0, memory={2: 1.0}, instance_cap=4)
    observation = seen(train_wait=1e6, instances=0.0, instances_next=2, rollout=1e6)
    assert update(state, observation, eta=3.0, memory=True) == state


@given(
    seconds=st.floats(0, 1e4),
    wait=st.floats(0, 1e9),
    remote=st.floats(0, 1e9),
    rollout=st.floats(0, 1e4),
    eta=st.floats(0.1, 100),
)
def test_never_negative_and_never_longer_than_it_could_be_used(
    seconds: float, wait: float, remote: float, rollout: float, eta: float
) -> None:
    observation = seen(train_wait=wait, remote_wait=remote, rollout=rollout)
    after = update(initial(seconds), observation, eta=eta, memory=True)
    assert 0.0 <= after.seconds <= max(seconds, rollout)
    assert after.instance_cap >= 1


def plant(seconds: float, *, instances: int) -> tuple[float, float, float]:
    """A step of 240 units of rollout and 30 s of training that needs responses as it goes.

    Reserved devices give 4 units/s in the window, each instance 2 units/s throughout. The
    learner cannot end before the last response, and works for 30 s from the window's end.
    Returns w_train, w_remote, and the rollout's duration.
    """
    rollout = max(seconds, (240 - 4 * seconds) / (2 * instances))
    trained = max(seconds + 30, rollout)
    return trained - seconds - 30, trained - rollout, rollout


@pytest.mark.parametrize("instances", [1, 2, 3])
@pytest.mark.parametrize("start", [0.0, 5.0, 60.0])
def test_waits_become_equal(instances: int, start: float) -> None:
    """In balance rollout = window + 30: T = (240 − 60·k) / (4 + 2·k), 0 if that is negative."""
    state = initial(start)
    for _ in range(40):
        wait, remote, rollout = plant(state.seconds, instances=instances)
        observation = seen(
            train_wait=wait, remote_wait=remote, rollout=rollout,
            instances=float(instances), instances_next=instances,
        )  # fmt: skip
        state = update(state, observation, eta=3.0, memory=True)
    optimum = max(0.0, (240 - 60 * instances) / (4 + 2 * instances))
    assert math.isclose(state.seconds, optimum, abs_tol=0.05)
    wait, remote, _ = plant(state.seconds, instances=instances)
    assert abs(wait - remote) < 0.5


def test_memory_is_back_at_once_where_the_count_is_known() -> None:
    state = WindowState(seconds=6.0, memory={3: 1.5}, instance_cap=4)
    assert recall(state, 3).seconds == 1.5
    assert recall(state, 2) == state


def test_time_open_adds_up_over_intervals() -> None:
    seeding = Seeding()
    seeding.begin(10.0, 3.0)
    assert seeding.until == 13.0 and seeding.total(11.0) == 1.0
    seeding.close(12.0)
    assert seeding.total(20.0) == 2.0
    seeding.reopen(20.0)
    assert seeding.total(21.5) == 3.5
