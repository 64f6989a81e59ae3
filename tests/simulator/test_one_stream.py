"""A step of the simulated learner is a step of the real one: the same waits, to the millisecond.

What the simulated manager said to its learner is said to `learner.driver`, message by message at
the same times, with a clock that training moves as far as the simulator lets it take.
"""

from collections import deque

import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.learner.episodes.collector import StepCollector
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.learner.stream.stream_driver import BatchIntake, drive
from rlboost_jax.manager.events import FromTrainer, Send
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.simulator.market.simulated_market import MachineChange, static
from rlboost_jax.simulator.rates import train_seconds
from rlboost_jax.simulator.simulated_trainer import STREAM
from rlboost_jax.simulator.world import World
from tests.simulator.conftest import make_config

FLEET = (
    *static(3).changes,
    MachineChange(9.0, False, "machine1"),
    MachineChange(14.0, True, "late"),
)


def simulated(config):
    """Rows of the simulated steps, and what their learner heard: step → [(time, message)]."""
    heard, step = {}, 0

    class Watched(Manager):
        def handle(self, event, now):
            nonlocal step
            if isinstance(event, FromTrainer) and isinstance(event.message, m.BeginBatch):
                step = event.message.batch
            actions = super().handle(event, now)
            for action in actions:
                if isinstance(action, Send) and action.stream == STREAM:
                    heard.setdefault(step, []).append((now, action.message))
            return actions

    rows = World(config, FLEET, seed=0, seconds=1e6, manager=Watched).run()
    return rows, heard


class Link:
    """Gives each message from its time on."""

    def __init__(self, heard):
        self.heard, self.now = deque(heard), 0.0

    def receive(self, timeout=None):
        time, _ = self.heard[0] if self.heard else (float("inf"), None)
        if timeout == 0 and time > self.now:
            return None
        self.now = max(self.now, time)
        return self.heard.popleft()[1]

    def doubt(self, step, doubts):
        raise AssertionError("nothing is disputed here")


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_simulated_step_waits_as_long_as_a_real_one(deterministic):
    config = make_config(
        trainer__deterministic=deterministic,
        trainer__switch_seconds=0.0,
        trainer__micro_batch_prompts=2,
    )
    work, trainer = config.workload, config.trainer
    rows, heard = simulated(config)
    assert len(rows) == 4 and any(row["train_wait_seconds"] > 0 for row in rows)
    for row in rows:
        step, link, order = row["step"], Link(heard[row["step"]]), []
        batches = MicroBatches(
            work.prompts_per_step, trainer.micro_batch_prompts, trainer.deterministic
        )
        stream = StepStream(step, group_size=work.group_size, micro_batches=batches)
        collector = StepCollector(
            step,
            version=step,
            prompts=[np.ones(1, np.int32)] * len(stream.begin()),
            group_size=work.group_size,
            ask=lambda episode: at_once(Verdict(reward=0.0, accuracy=0.0)),
            estimate=tuple,
        )

        def train(index, groups, link=link, order=order):
            order.append(index)
            tokens = [
                work.prompt_tokens + t.sequence.num_sampled for g in groups for t in g.trajectories
            ]
            link.now += train_seconds(config, tokens) + trainer.micro_batch_seconds
            return ()

        times = drive(
            BatchIntake(stream, collector), link, train=train, clock=lambda link=link: link.now
        )
        assert sorted(order) == list(range(batches.num_micro_batches))
        assert times.waiting == pytest.approx(row["train_wait_seconds"], abs=1e-3)
        apply_seconds = row["train_seconds"] - times.training
        assert apply_seconds == pytest.approx(trainer.apply_seconds, abs=1e-3)
