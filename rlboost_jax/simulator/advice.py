"""What a run's or a simulation's manager predicted, for advice."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from rlboost_jax.manager.policies.advice import Advice, advise
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.simulator.markets import markets, static
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.world import World

KINDS: Final = ("predicted", "foreseen")  # of events; the latter in runs of before
STEPS: Final = 6  # that are simulated
SECONDS: Final = 1e6  # that they may take


def of_run(workdir: str | Path) -> Advice:
    """Raises ConfigError where the run says nothing."""
    folder = Path(workdir)
    events = [row for row in _rows(folder / "events.jsonl") if row.get("kind") in KINDS]
    if not events:
        raise ConfigError(
            f"{folder}/events.jsonl has no event 'predicted'; let the run's manager predict steps: "
            "set manager.window = 'model' or fleet.sizing = 'marginal'"
        )
    seconds = {row["step"]: row["step_seconds"] for row in _rows(folder / "metrics.jsonl")}
    return advise([{**row["detail"], "step": row["step"]} for row in events], seconds)


def of_simulation(config: SimConfig) -> Advice:
    policy = replace(config.policy, window="model", sizing="marginal")
    config = replace(config, num_steps=STEPS, policy=policy)
    market = next((m for m in markets(config.market, seed=config.seed) if m.changes), static(1))
    world = World(config, market.changes, seed=config.seed, seconds=min(market.seconds, SECONDS))
    rows = world.run()
    return advise(world.predictions, {row["step"]: row["step_seconds"] for row in rows})


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # the last may be in the making
                yield json.loads(line)
