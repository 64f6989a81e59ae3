"""How busy slots are, and how much prefill is spared, where responses wait for an environment.

    python -m benchmarks.turned [--out=turned.json]

Simulated: four engines of the base configuration (Qwen3-14B on two H100s each) with 64 slots,
turns of 50 sampled tokens, tool calls of 0.5 to 1.5 s that answer with 32 tokens. The manager is
the real one. What is counted ends before the first sequence does.

`per slot` is the number of sequences for each slot.

- `busy`: share of the time of all slots in which they have a sequence, prefill included.
- `ceiling`: what it could be. With few sequences that is their number, over the slots, times the
  share of their lives that is not a tool call; with enough of them 1.
- `spared`: of the tokens that sequences come back with after an answer, those whose keys and
  values are still there.

Three rules: `before` goes to where a sequence was if a slot is free there and else anywhere,
`anywhere` always goes by load, `returning` is `manager/policies/returning.py`.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from configs.sim import base
from rlboost_jax.manager.reducer.components import Choices
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.reducer.rollout_dispatch import RolloutDispatch
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.simulator.market.simulated_market import static
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.world import World

INSTANCES: Final = 4
SLOTS: Final = 64
TURN, TURN_SECONDS = 50, 1.0
MEAN_CONTEXT: Final = 1500
FROM, UNTIL = 20.0, 60.0  # seconds that are counted
PER_SLOT: Final = (1.0, 2.0, 3.0, 4.0)  # sequences


class Before(RolloutDispatch):
    """Back to a free slot, and else anywhere."""

    def _goes_back(self, rollout: Rollout, home: Instance, there: Sequence[Instance]) -> bool:
        return len(home.held) < home.room

    def _return_to_pages(
        self, batch: BatchRecord, eligible: Sequence[Instance], now: float
    ) -> None:
        pass


class Anywhere(Before):
    """By load, as any other work."""

    def _goes_back(self, rollout: Rollout, home: Instance, there: Sequence[Instance]) -> bool:
        return False


RULES: Final[dict[str, Callable[..., RolloutDispatch]]] = {
    "anywhere": Anywhere,
    "before": Before,
    "returning": RolloutDispatch,
}


@dataclass(frozen=True, kw_only=True)
class Found:
    busy: float
    ceiling: float
    spared: float
    tokens_per_second: float

    @property
    def ratio(self) -> float:
        return self.busy / self.ceiling


def config_of(sequences: int) -> SimConfig:
    config = base.get_config()
    config.num_steps = 1
    config.settling_steps = 0
    config.engine.slots = SLOTS
    config.engine.reserve_ratio = 0.0
    config.workload.prompts_per_step = sequences // 8
    config.workload.max_response_tokens = 6000
    config.workload.mean_tokens = 5000.0  # of which none ends before it is counted
    config.workload.sigma = 0.1
    config.workload.turn_tokens = TURN
    config.workload.turn_seconds = TURN_SECONDS
    config.trainer.micro_batch_prompts = 1
    config.policy.seeding = False
    return sim_config(config)


def simulated(rule: str, sequences: int) -> Found:
    """One rule with so many sequences."""
    config = config_of(sequences)
    counted: list[tuple[float, float, float, float]] = []

    def made(settings: Any, now: float) -> Manager:
        return Manager(settings, now, Choices(dispatch=RULES[rule]))

    world = World(
        config,
        static(INSTANCES).changes,
        seed=1,
        seconds=UNTIL + 1.0,
        reserved_engines=False,
        manager=made,
    )

    def look() -> None:
        engines = [server.engine for server in world._servers.values()]
        for engine in engines:
            engine.advance(world.clock.now)
        sums = [
            sum(values)
            for values in zip(
                *((e.slot_seconds, e.prefilled, e.spared) for e in engines), strict=True
            )
        ]
        batch = world.manager.view.batch
        assert batch is not None
        sampled = sum(rollout.sequences.num_sampled for rollout in batch.rollouts)
        counted.append((sums[0], sums[1], sums[2], sampled))

    for moment in (FROM, UNTIL):
        world.clock.at(moment, look)
    world.run()
    busy, prefilled, spared, sampled = (
        after - before for before, after in zip(*counted, strict=True)
    )
    rates = world.rates[False]
    assert rates.slots == SLOTS, f"pages for {rates.slots} slots only"
    return Found(
        busy=busy / (INSTANCES * SLOTS * (UNTIL - FROM)),
        ceiling=_ceiling(rates, sequences / INSTANCES),
        spared=spared / max(1.0, prefilled + spared),
        tokens_per_second=sampled / (UNTIL - FROM),
    )


def _ceiling(rates: EngineRates, sequences: float) -> float:
    """Share of an engine's slots in use with so many sequences, without any wait or prefill: as
    many run as there are, times the share of a cycle that a turn takes with as many running."""
    low, high = 0.0, float(SLOTS)
    for _ in range(50):
        running = (low + high) / 2
        turn = TURN * rates.step_seconds(running, running * MEAN_CONTEXT)
        more = sequences * turn > running * (turn + TURN_SECONDS)
        low, high = (running, high) if more else (low, running)
    return low / SLOTS


def table() -> Iterator[tuple[str, float, Found]]:
    for per_slot in PER_SLOT:
        for rule in RULES:
            yield rule, per_slot, simulated(rule, round(per_slot * INSTANCES * SLOTS))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.turned",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", default="", help="file for the figures")
    chosen = parser.parse_args(arguments)
    rows = []
    print(
        "| sequences per slot | rule | slots busy | ceiling | ratio | prefill spared | tokens/s |"
    )
    print("|--:|---|--:|--:|--:|--:|--:|")
    for rule, per_slot, found in table():
        print(
            f"| {per_slot:g} | {rule} | {found.busy:.1%} | {found.ceiling:.1%} | {found.ratio:.2f} "
            f"| {found.spared:.1%} | {found.tokens_per_second:,.0f} |",
            flush=True,
        )
        rows.append({"rule": rule, "per_slot": per_slot, **asdict(found), "ratio": found.ratio})
    if chosen.out:
        Path(chosen.out).write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
