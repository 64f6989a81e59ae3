"""What a lag gains where instances come and go: an hour on one synthetic availability trace.

    python -m experiments.lag.trace [--seeds 0 1 2]

The trace is drawn (`simulator/market/hazard.py`), not recorded: nobody's is shipped. Its seed
is the first with which between 0 and 16 instances are on loan, both of which it reaches.
"""

import argparse
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from experiments.lag.experiment import ENGINES, SYSTEMS
from experiments.plots import FOLDER
from experiments.simulated import SEEDS, config_of, gains, interval, outcome
from rlboost_jax.simulator.bound import lag_bound, run_bound
from rlboost_jax.simulator.market.hazard import draw
from rlboost_jax.simulator.market.simulated_market import Market, markets
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.sim_config import HazardConfig, SimConfig

HOURS: Final = 1.0
TRACE_SEED: Final = 12
HAZARD: Final = HazardConfig(
    machines=8.0,
    lifetime_hours=0.4,
    batch_size=4.0,  # preempted at once
    drought_hours=0.1,
    drought_gap_hours=0.3,
)
LARGEST: Final = 16


def counts(seed: int = TRACE_SEED) -> list[tuple[float, int]]:
    """(minutes, instances on loan from then on); the first are those of the beginning."""
    rows = draw(HAZARD, hours=HOURS, seed=seed)
    alive = itertools.accumulate(1 if row.action == "add" else -1 for row in rows)
    changes = zip((row.milliseconds / 60_000 for row in rows), alive, strict=True)
    return list({minutes: count for minutes, count in changes}.items())


def measure(seed: int, *, small: bool = False) -> dict[str, Outcome]:
    """By lag, the hour with that seed's responses, from its first step on."""
    hazard = {f"market__hazard__{name}": value for name, value in asdict(HAZARD).items()}
    config = config_of(
        "14b", small=small, seed=seed, settling_steps=0,
        market__kind="hazard", market__segments=((0.0, HOURS / 10 if small else HOURS),),
        **hazard, **ENGINES,
    )  # fmt: skip
    (market,) = markets(config.market, seed=TRACE_SEED)
    return {lag: outcome(system, config, market, seed=seed) for lag, system in SYSTEMS.items()}


def over_seeds(runs: Mapping[int, Mapping[str, Outcome]]) -> dict[str, Any]:
    """Lag → figures; gains are over no lag on the same trace with the same responses."""
    found = {}
    for lag in SYSTEMS:
        own = [run[lag] for run in runs.values()]
        found[lag] = {
            "tokens_per_second": interval([one.tokens_per_second for one in own]),
            "dollars_per_million_tokens": interval([1e6 / one.tokens_per_dollar for one in own]),
            **gains(own, [run["0"] for run in runs.values()]),
            "of_bound": interval(
                [of_bound(one, seed=seed) for seed, one in zip(runs, own, strict=True)]
            ),
            "of_lag_bound": interval(
                [of_lag_bound(one, seed, int(lag)) for seed, one in zip(runs, own, strict=True)]
            ),
            "steps": interval([len(one.rows) for one in own]),
        }
    return found


def of_bound(outcome: Outcome, *, seed: int) -> float:
    """Least seconds of the steps that were complete, on this trace, over theirs."""
    config: SimConfig = outcome.config
    (market,) = markets(config.market, seed=TRACE_SEED)
    least = run_bound(config, _lengths(outcome, seed), instance_seconds(market))
    return least / sum(row["step_seconds"] for row in outcome.rows)


def of_lag_bound(outcome: Outcome, seed: int, lag: int) -> float:
    """The same with no batch generated earlier than its lag allows, from the end of the first step
    on: in that one nothing is known of lengths and speeds."""
    (market,) = markets(outcome.config.market, seed=TRACE_SEED)
    first, *others = (row["step_seconds"] for row in outcome.rows)
    steps = _lengths(outcome, seed)
    found = lag_bound(outcome.config, steps, instance_seconds(market), lag=lag, ends=[first])
    return (found[-1] - first) / sum(others)


def _lengths(outcome: Outcome, seed: int) -> list[NDArray[np.int64]]:
    """Lengths of all responses, by step."""
    work = outcome.config.workload
    return [response_lengths(work, seed=seed, step=row["step"]) for row in outcome.rows]


def instance_seconds(market: Market) -> Callable[[float], float]:
    """Return a function from seconds to the instance-seconds on loan within them."""

    def by(seconds: float) -> float:
        return sum(
            (1 if change.added else -1) * max(0.0, seconds - change.seconds)
            for change in market.changes
        )

    return by


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.lag.trace")
    parser.add_argument("--seeds", type=int, nargs="+", default=[*SEEDS])
    chosen = parser.parse_args(arguments)
    results = {"trace": counts(), "lags": over_seeds({s: measure(s) for s in chosen.seeds})}
    print(json.dumps(results["lags"], indent=1))
    (FOLDER / "lag" / "trace.json").write_text(json.dumps(results) + "\n")


if __name__ == "__main__":
    main()
