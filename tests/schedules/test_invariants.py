"""The checks see what changes at once, and what changes behind their back soon."""

from collections.abc import Callable

import pytest

from rlboost_jax.manager.state.rollouts import Rollout
from tests.schedules.faults import Run, Schedule
from tests.schedules.invariants import WHOLE, check, check_whole
from tests.schedules.world import World


def begun() -> tuple[World, Rollout]:
    """A calm run after its first tokens, and a rollout that has some."""
    calm = Schedule(seed=1, seeding=True, extends=False, servers=1, machines=0, faults=())
    one = Run(calm, calm_at=None)
    while True:
        one.world.pass_time(0.05)
        assert one.world.manager is not None
        for step in one.world.manager.view.batches.values():
            for rollout in step.rollouts:
                if rollout.transcript.parts and rollout.placement.holder:
                    check_whole(one.world)
                    return one.world, rollout


def one_token_more(rollout: Rollout) -> None:
    rollout.transcript.num_tokens += 1


def another_holder(rollout: Rollout) -> None:
    rollout.placement.holder = "nobody"


def parked(rollout: Rollout) -> None:
    rollout.parked = True


def another_place(rollout: Rollout) -> None:
    rollout.sequences.tokens_before += 1


@pytest.mark.parametrize("spoil", [one_token_more, another_holder, parked, another_place])
def test_what_changes_is_seen_at_once(spoil: Callable[[Rollout], None]) -> None:
    world, rollout = begun()
    spoil(rollout)
    with pytest.raises(AssertionError):
        check(world)
    world.close()


def test_what_the_getters_do_not_read_is_seen_by_a_whole_check() -> None:
    world, rollout = begun()
    name, count = rollout.transcript.parts[0]
    rollout.transcript.parts[0] = name, count + 1
    with pytest.raises(AssertionError):
        for _ in range(WHOLE + 1):
            check(world)
    world.close()


def test_counts_are_compared_every_time() -> None:
    """Though nothing of the roster has changed."""
    world, _ = begun()
    assert world.manager is not None
    check(world)
    world.manager.view.roster.index.num_releasing += 1
    with pytest.raises(AssertionError):
        check(world)
    world.close()
