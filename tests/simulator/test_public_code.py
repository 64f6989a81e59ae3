"""The public code's decisions, each against its description worked out by hand."""

from collections import Counter
from functools import partial

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Send
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.public_code import Controller, PublicCode
from rlboost_jax.simulator.systems import rows_of
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config


class Watched(World):
    """Keeps what the manager sends, with its time."""

    def __init__(self, *args, **others):
        self.sent = []
        super().__init__(*args, **others)

    def _perform(self, action):
        if isinstance(action, Send):
            self.sent.append((self.clock.now, action.stream, action.message))
        super()._perform(action)


def world(config, changes, **others):
    manager = partial(PublicCode, table=dict(config.policy.public_table), accelerators=4)
    return Watched(config, changes, seed=0, seconds=1e6, manager=manager, sleeps=True, **others)


def config_of(**changes):
    return make_config(
        policy__public_table=((2, 9),), policy__window_initial_seconds=20.0, **changes
    )


def test_groups_go_as_one_and_at_most_four_between_two_polls():
    simulated = world(config_of(num_steps=2, settling_steps=1), static(2).changes)
    simulated.run()
    given = [(at, msg) for at, _, msg in simulated.sent if isinstance(msg, m.Generate)]
    assert len(given) >= 32  # 16 groups a step
    for _, message in given:
        assert len({request.work.prompt for request in message.requests}) == 1
        assert len(message.requests) <= 4
    for begin, _ in given:
        assert sum(begin <= at < begin + 0.999 for at, _ in given) <= 2 * 4
    # Dispatching 16 groups takes three more polls than the first.
    first = [at for at, message in given if message.requests[0].work.batch == 0][:16]
    assert first[-1] - first[0] >= 3.0 - 1e-6


def test_the_window_is_slept_out_and_answers_are_read_a_second_later():
    """By those that have finished: responses of 30 tokens are there long before."""
    config = config_of(workload__mean_tokens=30.0, num_steps=2, settling_steps=1)
    simulated = world(config, static(2).changes)
    rows = simulated.run()
    closed = [at for at, _, message in simulated.sent if isinstance(message, m.WindowClosed)]
    begun = [row["begun_at"] + config.trainer.begin_seconds for row in rows]
    windows = [row["seeding_window_seconds"] for row in rows]
    assert windows == [20.0, 9.0]  # T_init, then the table's
    for at, since, window in zip(closed, begun, windows, strict=True):
        assert at == pytest.approx(since + window + 1.0)
    # Learning begins then, and not as the last response is there.
    assert rows[0]["rollout_seconds"] < 10.0 < rows[0]["step_seconds"] - rows[0]["train_seconds"]


def test_a_break_cuts_a_group_to_its_shortest_member():
    simulated = world(config_of(num_steps=1, settling_steps=0), static(2).changes)
    lengths = {}
    redo = simulated.manager.owners.ledger.redo

    def watched(step, cuts):
        for rollout, length in cuts.items():
            size = step.begin.group_size
            first = rollout.group * size
            members = [
                step.rollout_of(first + place).transcript.num_tokens for place in range(size)
            ]
            assert length == min(members) < rollout.transcript.num_tokens
            lengths[rollout.sample] = rollout.transcript.num_tokens - length
        redo(step, cuts)

    simulated.manager.owners.ledger.redo = watched
    (row,) = simulated.run()
    assert lengths and row["tokens_lost"] == sum(lengths.values())
    assert row["tokens_generated"] == row["tokens_delivered"] + row["tokens_lost"]


def test_every_sample_is_delivered_once_after_any_loss():
    changes = (
        *static(2).changes,
        MachineChange(30.0, False, "machine1"),
        MachineChange(45.0, True, "back"),
    )
    simulated = world(config_of(num_steps=3, settling_steps=1), changes)
    rows = simulated.run()
    assert len(rows) == 3
    finished = Counter(
        (message.work.batch, message.work.sample)
        for _, _, message in simulated.sent
        if isinstance(message, m.FinishedRollout)
    )
    assert len(finished) == 3 * 64 and set(finished.values()) == {1}


def test_without_instances_it_never_ends_a_step():
    assert rows_of("public_code", config_of(), static(0), seed=0)[1] is None


def controlled(seconds=150, table=None):
    return Controller(seconds, table or {})


def update(controller, count, *, idle=0.0, bubble=0.0, throughput=1):
    return controller.update(
        count=count, generation=100.0, step=100.0 + idle, bubble=bubble, throughput=throughput
    )


def test_a_count_that_the_table_knows_gives_its_window():
    controller = controlled(150, {1: 190, 2: 160})
    assert update(controller, 2) == 160
    assert update(controller, 1) == 190


def test_a_third_of_the_difference_in_whole_seconds_and_a_floor():
    controller = controlled(30)
    assert update(controller, 3, bubble=10.9) == 33  # 10 s // 3
    assert update(controller, 3, idle=20.5) == 27  # 20 s // 3
    assert update(controller, 3, idle=500.0) == 5


def test_the_memory_is_a_moving_average():
    controller = controlled(100)
    update(controller, 3, throughput=10)  # a new count: nothing was known of it
    update(controller, 3, throughput=20)  # grew: the peak is where the window was
    update(controller, 3, throughput=15, bubble=30)  # fell: 0.2 · 100 + 0.8 · 100
    assert controller.seconds == 110
    update(controller, 4)  # 3 is left at 0.8 · 100 + 0.2 · 100
    assert update(controller, 3) == 100
