"""What would one more instance cost or save, and how many are worth having?

    python -m rlboost_jax.advise --workdir=runs/gsm8k
    python -m rlboost_jax.advise --config=configs/sim/paper_14b_static.py

Of a run: from what its manager foresaw after each step (`foreseen` in `events.jsonl`; it does
with `manager.window = "model"` or `fleet.sizing = "marginal"`), against the step times in
`metrics.jsonl`. Of a simulation's configuration: its workload is simulated for some steps with
the first fleet of its market that has an instance, and the manager asked.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax import exits
from rlboost_jax.config.command_line import parse
from rlboost_jax.config.errors import ConfigError
from rlboost_jax.manager.advice import Advice, advise, report
from rlboost_jax.simulator.load import sim_config
from rlboost_jax.simulator.markets import markets, static
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.world import World

STEPS: Final = 6  # that are simulated
SECONDS: Final = 1e6  # that they may take

_CONFIG = config_flags.DEFINE_config_file("config", None, "Simulation to ask.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run to ask.")


def of_run(workdir: str | Path) -> Advice:
    """Raises ConfigError where the run says nothing."""
    folder = Path(workdir)
    events = [row for row in _rows(folder / "events.jsonl") if row.get("kind") == "foreseen"]
    if not events:
        raise ConfigError(
            f"{folder}/events.jsonl has no event 'foreseen'; let the run's manager foresee steps: "
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
    return advise(world.foreseen, {row["step"]: row["step_seconds"] for row in rows})


def main(argv: list[str]) -> None:
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}; options begin with --")
        if bool(_WORKDIR.value) == (_CONFIG.value is not None):
            raise ConfigError("give either --workdir of a run or --config of a simulation")
        if _WORKDIR.value:
            advice = of_run(_WORKDIR.value)
        else:
            advice = of_simulation(sim_config(_CONFIG.value))
    except (ConfigError, OSError, ValueError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))
    print(report(advice))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if line.endswith("\n"):  # the last may be in the making
                yield json.loads(line)


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse, record=SimConfig))
