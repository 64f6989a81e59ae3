"""Merged tails in virtual time: what is let go, when it is back, and what that saves."""

import itertools

import pytest

from rlboost_jax.manager.events import Record
from rlboost_jax.simulator.economics import dollars
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

LONG_TRAINING = {
    "policy__window": "model", "policy__merge_tail": True, "num_steps": 5,
    "workload__prompts_per_step": 24, "trainer__compute_efficiency": 0.1,
    "instance__start_seconds": 4.0,
}  # fmt: skip


class Watched(World):
    """Keeps what the manager records of its fleet: (seconds, step, kind, responses held)."""

    def __init__(self, *args, **more):
        self.records = []
        super().__init__(*args, **more)

    def _perform(self, action):
        match action:
            case Record(kind="dismissed" | "ordered" | "window_closed", detail=detail):
                held = detail.get("count", 0)
                self.records.append((self.clock.now, action.step, action.kind, held))
        super()._perform(action)

    def times(self, kind, step):
        return [now for now, of, what, _ in self.records if (of, what) == (step, kind)]


def run(instances=4, *, changes=(), seed=1, **more):
    config = make_config(**{**LONG_TRAINING, **more})
    market = sorted((*static(instances).changes, *changes), key=lambda change: change.seconds)
    world = Watched(config, tuple(market), seed=seed, seconds=1e6)
    return world, world.run()


@pytest.fixture(scope="module")
def merged():
    return run()


def test_instances_rest_after_the_window_and_are_back_for_the_next_step(merged):
    world, rows = merged
    moved = 0
    for row, following in itertools.pairwise(rows[1:]):
        step, ends = row["step"], following["begun_at"]
        gone, back = world.times("dismissed", step), world.times("ordered", step)
        assert len(gone) == len(back) > 0
        assert world.times("window_closed", step)[0] <= min(gone) < min(back)
        assert max(gone) < min(back) <= max(back) < ends
        # By then those that stayed and those that came back make the fleet whole.
        assert max(back) + world.config.instance.start_seconds <= ends + 0.03 * row["step_seconds"]
        moved += sum(held for _, of, _, held in world.records if of == step)
    assert moved > 0, "nothing was merged, only let go"


def test_it_saves_money_at_no_loss_of_time(merged):
    """Over four seeds: a step so small hangs on a few responses."""
    spent, seconds = {True: 0.0, False: 0.0}, {True: 0.0, False: 0.0}
    for seed, merges in itertools.product((1, 2, 3, 4), (True, False)):
        same = (seed, merges) == (1, True)
        world, rows = merged if same else run(seed=seed, policy__merge_tail=merges)
        assert bool(world.times("dismissed", 2)) == merges
        spent[merges] += sum(dollars(world.config, row) for row in rows[1:])
        seconds[merges] += sum(row["step_seconds"] for row in rows[1:])
    assert spent[True] < 0.95 * spent[False]
    assert seconds[True] < 1.03 * seconds[False]


def test_rests_are_no_losses(merged):
    """Neither in the books nor for the rate of losses that is learnt."""
    world, rows = merged
    assert [row["instances_lost"] for row in rows] == [0] * len(rows)
    assert world.manager.view.roster.losses == 0.0
    for row in rows:
        assert row["tokens_delivered"] == row["response_tokens"]
        assert row["tokens_generated"] - row["tokens_lost"] == row["tokens_delivered"]


def test_after_the_last_step_nobody_comes_back(merged):
    world, rows = merged
    last = rows[-1]["step"]
    assert not world.times("ordered", last)
    assert len(world.times("dismissed", last)) == 4


def test_nobody_rests_for_less_than_it_takes_to_start():
    world, _ = run(instance__start_seconds=200.0, num_steps=4)
    assert not [step for _, step, kind, _ in world.records if kind == "dismissed" and step < 3]
    assert len(world.times("dismissed", 3)) == 4, "nobody is needed after the last step"


def test_what_the_market_takes_meanwhile_is_not_there_again():
    """A machine goes while its instance rests, and another while it has work to finish."""
    calm, rows = run(num_steps=3)
    at = max(calm.times("dismissed", 1)) + 0.5
    changes = [MachineChange(at, False, "machine1"), MachineChange(at, False, "machine2")]
    world, rows = run(changes=changes)
    assert len(rows) == 5
    for row in rows:
        assert row["tokens_delivered"] == row["response_tokens"]
    assert len(world.manager.view.fleet.machines) == 2
