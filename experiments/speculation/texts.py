"""Servers with texts of a batch before it begins: drafted in idle slots (BubbleSpec).

What such a draft is worth is taken from the siblings': it is right with the same chance, and no
use beyond its end. Of each prompt the first response is drafted.
"""

import sys
from contextlib import ExitStack
from functools import partial
from typing import Any, Final
from unittest import mock

from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.manager.state.sibling_groups import SiblingGroups
from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.simulated_server import SimulatedServer
from rlboost_jax.simulator.systems import rows_of
from rlboost_jax.simulator.world import World

Texts = dict[str, list[int]]
# Who has which texts before a batch begins:
OWN: Final = "own"  # a server what its idle slots had time for, reserved ones nothing
FOLLOWED: Final = "followed"  # the same; responses go where the text is, and none needs to lead
TOGETHER: Final = "together"  # nobody any; siblings go to one server at once, and none leads


class PredraftingServer(SimulatedServer):
    """A server that has texts of a batch before any of its responses.

    Args:
        kind: one of the above.
        texts: of each server, the prompts that it has texts of; to be written to.
        instances: of the fleet, which share the prompts.
    """

    def __init__(
        self, *arguments: Any, kind: str, instances: int, texts: Texts, **named: Any
    ) -> None:
        super().__init__(*arguments, **named)
        self._texts = texts
        self._kind, self._instances = kind, instances
        self._at = self._used = 0.0
        forget = self.engine.forget

        def forget_and_know(version: int) -> None:
            forget(version)
            self._know(version)

        self.engine.forget = forget_and_know  # type: ignore[method-assign]

    def _know(self, batch: int) -> None:
        """Add the texts of a batch, which its predecessor's version wrote."""
        work, now = self._world.config.workload, self._world.clock.now
        idle = (now - self._at) * self._slots - (self.engine.slot_seconds - self._used)
        self._at, self._used = now, self.engine.slot_seconds
        rates = self._world.rates_of(self.name, reserved=self.reserved)
        step = rates.step_seconds(self._slots, self._slots * work.mean_tokens / 2)
        left = 0.0 if self.reserved else idle / step  # tokens that idle slots had time for
        number = self.name.rpartition("-")[2]
        first = int(number) % self._instances if number.isdecimal() else 0
        prompts = range(first, work.prompts_per_step, self._instances)
        self._texts[self.name] = []
        for prompt in prompts if self._kind != TOGETHER else ():
            tokens = self._world.length(batch, prompt * work.group_size)
            if tokens > left:
                break
            left -= tokens
            self.engine.know((batch, prompt), tokens)
            self._texts[self.name].append(prompt)


def outcome(kind: str, config: SimConfig, instances: int, *, seed: int) -> Outcome:
    """Simulate with instances that stay; settled steps only."""
    texts: Texts = {}
    server = partial(PredraftingServer, kind=kind, instances=instances, texts=texts)
    world = partial(World, server=server)
    look, at = SiblingGroups.look, SiblingGroups.at

    def without_leaders(groups: SiblingGroups, batch: BatchRecord) -> dict[int, float]:
        return {
            sample: max(rank, -sys.float_info.max) for sample, rank in look(groups, batch).items()
        }

    def with_texts(groups: SiblingGroups, instance: str) -> list[int]:
        first = at(groups, instance)
        return [*first, *sorted(set(texts.get(instance, ())) - set(first))]

    with ExitStack() as patches:
        if kind in (FOLLOWED, TOGETHER):
            patches.enter_context(mock.patch.object(SiblingGroups, "look", without_leaders))
            patches.enter_context(mock.patch.object(SiblingGroups, "at", with_texts))
        rows = rows_of("model_window", config, static(instances), seed=seed, world=world)
    return Outcome(*rows, settling=config.settling_steps)
