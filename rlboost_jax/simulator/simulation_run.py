"""Carry out a simulation: every system on every market, and the files that tell of it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from rlboost_jax.simulator.market.simulated_market import markets
from rlboost_jax.simulator.outcome import Outcome, summary
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import to_dict
from rlboost_jax.simulator.simulation_garbage import free, without_collections
from rlboost_jax.simulator.systems import BASELINE, Rows, Worlds, rows_of
from rlboost_jax.simulator.world import World

SUMMARY: Final = "summary.json"
STEPS: Final = "steps.jsonl"
CONFIG: Final = "config.json"


def simulate(
    config: SimConfig,
    workdir: str | Path,
    tell: Callable[[str], None] = lambda line: None,
    *,
    world: Worlds = World,
) -> dict[str, Any]:
    """Simulate, write the files into `workdir`, return the summary.

    Args:
        tell: called with a line as each part is done.
        world: makes what a system lives in.

    Raises:
        ConfigError: a trace cannot be read, or a market is too short for a step.
    """
    folder = Path(workdir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(to_dict(config), indent=2) + "\n")
    systems = tuple(dict.fromkeys((BASELINE, *config.systems)))
    outcomes: dict[tuple[str, str], list[Outcome]] = {}
    instances: dict[str, int | None] = {}
    since = time.process_time()
    with open(folder / STEPS, "w") as steps, without_collections():
        for seed in range(config.seed, config.seed + config.num_seeds):
            known: Rows | None = None  # the baseline knows no market but its length
            for market in markets(config.market, seed=seed):
                instances[market.name] = market.instances
                for system in systems:
                    used: SimConfig = config
                    rows: Rows | None
                    if system == BASELINE and known is not None and market.instances is not None:
                        rows = known
                    else:
                        used, rows = rows_of(system, config, market, seed=seed, world=world)
                    if system == BASELINE:
                        known = rows
                    outcome = Outcome(used, rows, settling=config.settling_steps)
                    outcomes.setdefault((system, market.name), []).append(outcome)
                    for row in rows or ():
                        named = {"system": system, "market": market.name, "seed": seed, **row}
                        steps.write(json.dumps(named, allow_nan=False) + "\n")
                    tell(
                        f"{market.name:>16}  {system:<14} seed {seed}: "
                        f"{outcome.tokens_per_second:,.0f} tokens/s, "
                        f"{outcome.tokens_per_dollar:,.0f} tokens/$"
                    )
                free()
    found = summary(outcomes, instances)
    found["cpu_seconds"] = round(time.process_time() - since, 2)
    (folder / SUMMARY).write_text(json.dumps(found, indent=2, allow_nan=False) + "\n")
    return found


def report(found: dict[str, Any]) -> str:
    """Format the summary for people: a table of systems and markets."""
    lines = [f"{'market':>16}  {'system':<16} {'tokens/s':>9} {'ratio':>6} {'$ eff.':>6} "
             f"{'step s':>7} {'window s':>8}"]  # fmt: skip
    for row in found["results"]:
        lines.append(
            f"{row['market']:>16}  {row['system']:<16} {row['tokens_per_second']:>9,.0f} "
            f"{row['throughput_ratio']:>6.2f} {row['cost_efficiency']:>6.2f} "
            f"{_seconds(row, 'step_seconds'):>7} {_seconds(row, 'seeding_window_seconds'):>8}"
        )
    return "\n".join(lines)


def _seconds(row: dict[str, Any], name: str) -> str:
    return "" if row.get(name) is None else f"{row[name]:.0f}"
