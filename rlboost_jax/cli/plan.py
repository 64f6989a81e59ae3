"""Plan: which machines to buy for a run? Mixes of types, zones and counts by cost, time and risk.

    rlboost plan --config=qwen3_14b_openr1 --prices=prices.toml
    rlboost plan --workdir=runs/gsm8k --prices=prices.toml --deadline_hours=12

--config is a run's or a simulation's; with --workdir, speeds and lengths are those of a run that
was. Simulates mixes with the manager itself until those that nobody would pass over are known,
prints them with the settings of the one to choose, and writes plan.json. A price list to begin
with is printed by `rlboost plan --prices=example`; docs/how-to/plan.md tells of it.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax.configs.sim import base as simulation_base
from rlboost_jax.platform import durable, exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.shipped import OF_SIMULATIONS
from rlboost_jax.simulator.plan.mix_run import horizon_of
from rlboost_jax.simulator.plan.mixes import space_of
from rlboost_jax.simulator.plan.plan_report import report
from rlboost_jax.simulator.plan.planning import PlanLimits, plan, processes, to_json
from rlboost_jax.simulator.plan.price_list import EXAMPLE_FILE, read_prices
from rlboost_jax.simulator.plan.purchase import as_fast_as_measured, purchase_of
from rlboost_jax.simulator.plan.search import SearchProgress
from rlboost_jax.simulator.plan.workload import Workload, of_config, of_workdir
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config, to_dict

EXAMPLE: Final = "example"
_SIMULATIONS_TOO: Final = ((SimConfig, OF_SIMULATIONS),)
TELL_SECONDS: Final = 2.0  # between two lines of progress

_CONFIG = config_flags.DEFINE_config_file(
    "config", None, "A run's configuration, or a simulation's.", lock_config=True
)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of a run to take speeds and lengths from.")
_PRICES = flags.DEFINE_string("prices", None, "Price list in TOML; 'example': one that is shipped.")
_RUN_STEPS = flags.DEFINE_integer(
    "run_steps", 0, "Steps of the run; 0: as it says, 100 for a simulation.", lower_bound=0
)
_STEPS = flags.DEFINE_integer("steps", 8, "Steps that are simulated of it.", lower_bound=1)
_SETTLING = flags.DEFINE_integer(
    "settling", 4, "Steps of these at the beginning that stand for themselves only.", lower_bound=0
)
_SEEDS = flags.DEFINE_integer("seeds", 3, "Simulations of each mix.", lower_bound=1, upper_bound=99)
_TOTAL = flags.DEFINE_integer(
    "total", 0, "Instances of all types together, at most; 0: fleet.max_instances.", lower_bound=0
)
_MEAN_TOKENS = flags.DEFINE_float(
    "mean_tokens", 0.0, "Of a response, on average; 0: as the configuration says.", lower_bound=0
)
_DEADLINE = flags.DEFINE_float("deadline_hours", 0.0, "That the run may take.", lower_bound=0)
_BUDGET = flags.DEFINE_float("budget", 0.0, "Dollars that the run may cost.", lower_bound=0)
_RISK = flags.DEFINE_float(
    "risk", 0.05, "Probability of missing either that is accepted.", lower_bound=0, upper_bound=1
)
_SIMULATIONS = flags.DEFINE_integer(
    "simulations", 0, "At most; 0: as many as it takes to be exact.", lower_bound=0
)
_PROCESSES = flags.DEFINE_integer("processes", 0, "That simulate; 0: one a core.", lower_bound=0)
_ROWS = flags.DEFINE_integer("rows", 5, "Mixes to print besides the best.", lower_bound=0)
_TO = flags.DEFINE_string("to", "plan.json", "File for the whole plan.")


def main(argv: list[str]) -> None:
    try:
        if not _PRICES.value:
            raise ConfigError("no --prices given; name a price list, or --prices=example")
        if _PRICES.value == EXAMPLE and _CONFIG.value is None and not _WORKDIR.value:
            print(EXAMPLE_FILE.read_text("utf-8"), end="")
            return
        _plan()
    except (ConfigError, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))


def _plan() -> None:
    prices = read_prices(EXAMPLE_FILE if _PRICES.value == EXAMPLE else str(_PRICES.value))
    asked = _workload()
    assumed = asked.measured and _PRICES.value == EXAMPLE
    if assumed:  # its devices have no known speed beside the run's own, which may be a laptop's
        prices = as_fast_as_measured(asked.config, prices)
    purchase = purchase_of(asked.config, prices, measured=asked.measured)
    horizon = horizon_of(
        run_steps=_RUN_STEPS.value or asked.run_steps,
        steps=_STEPS.value,
        settling=_SETTLING.value,
        seeds=range(asked.config.seed, asked.config.seed + _SEEDS.value),
    )
    space = space_of(prices, total=_TOTAL.value or asked.max_instances)
    limits = PlanLimits(
        hours=_DEADLINE.value,
        dollars=_BUDGET.value,
        risk=_RISK.value,
        worth_per_hour=asked.worth_per_hour,
    )
    print(f"{horizon.run_steps:,} steps; speeds: {asked.speeds}")
    if assumed:
        print(
            "speeds of the example's machines beside the run's own are unknown: each counts as one "
            "of the run's; give speed in a list of your own"
        )
    print(f"prices of {prices.date or 'no stated date'}: check them yourself", flush=True)
    count = _PROCESSES.value or len(os.sched_getaffinity(0))
    with processes(purchase, horizon, count) as simulate:
        found = plan(
            purchase, space, horizon, limits,
            simulate=simulate, budget=_SIMULATIONS.value, tell=_teller(),
        )  # fmt: skip
    print(report(found, purchase, limits, others=_ROWS.value))
    written = to_json(found, purchase, horizon, limits, speeds=asked.speeds, prices=prices.date)
    durable.write(Path(_TO.value), (json.dumps(written, indent=2) + "\n").encode())
    print(f"written: {_TO.value}")


def _workload() -> Workload:
    if not _WORKDIR.value and _CONFIG.value is None:
        raise ConfigError("neither --config nor --workdir given; name a configuration or a run")
    if not _WORKDIR.value:
        found = of_config(_CONFIG.value)
    else:
        base = _CONFIG.value or simulation_base.get_config()
        found = of_workdir(_WORKDIR.value, to_dict(sim_config(base)), settling=2)
    return found.with_mean(_MEAN_TOKENS.value) if _MEAN_TOKENS.value else found


def _teller() -> Callable[[SearchProgress], None]:
    """Return a callback that reports progress, now and then, on standard error."""
    said = time.monotonic()

    def tell(progress: SearchProgress) -> None:
        nonlocal said
        if time.monotonic() < said + TELL_SECONDS:
            return
        said = time.monotonic()
        line = (
            f"{progress.simulated:,} mixes simulated, {progress.begun:,} begun, "
            f"{progress.ruled_out:,} ruled out, {progress.left:,} left"
        )
        print(line, file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse, command="plan", others=_SIMULATIONS_TOO))
