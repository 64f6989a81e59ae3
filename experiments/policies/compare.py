"""Our policies against RLBoost's as published and against a bound, on a market, over seeds.

    python -m experiments.policies.compare --trace=aws-p3.csv --seeds=3 --hours=1.2

Without a trace the market is the synthetic one of `configs/sim/base.py`. Every seed draws other
lengths and keeps other machines of the trace, or draws another market.
"""

import argparse
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from configs.sim import base
from rlboost_jax.simulator.bound import step_bound
from rlboost_jax.simulator.lengths import response_lengths
from rlboost_jax.simulator.load import sim_config
from rlboost_jax.simulator.markets import Market, markets
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.world import World

RESULTS: Final = Path(__file__).parent / "results.json"
RESERVED: Final = 83.79  # dollars per hour of the reserved node
MERGED: Final = {"window": "model", "sizing": "marginal", "merge_tail": True}
SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "paper": {"window": "paper", "sizing": "paper"},
    "window": {"window": "model", "sizing": "paper"},
    "sized": {**MERGED, "merge_tail": False, "worth_per_hour": RESERVED},
    "cheap": {**MERGED, "worth_per_hour": 0.0},
    "ours": {**MERGED, "worth_per_hour": RESERVED},
    "fast": {**MERGED, "worth_per_hour": 3 * RESERVED},
}
LENGTHS: Final[Mapping[str, Mapping[str, float]]] = {
    "as fitted": {},
    "growing 4 % a step": {"mean_tokens": 6000.0, "growth_per_step": 0.04},
    "wide, groups unlike": {"sigma": 0.9, "group_correlation": 0.3},
}
KEPT: Final = ("step_seconds", "seeding_window_seconds", "train_wait_seconds", "instances_mean")
MEASURES: Final = ("tokens_per_second", "tokens_per_dollar")


def settings(trace: str, hours: float, seed: int, lengths: Mapping[str, float]) -> SimConfig:
    config = base.get_config("14b")
    config.seed, config.num_steps, config.settling_steps = seed, 0, 1
    config.market.kind = "trace" if trace else "hazard"
    config.market.path, config.market.segments = trace, ((0.0, hours),)
    config.market.keep_fraction, config.market.keep_seed = 0.5, seed
    for name, value in lengths.items():
        config.workload[name] = value
    return sim_config(config)


def bound(config: SimConfig, market: Market, *, seed: int, steps: int) -> dict[str, float]:
    """Nobody can do better on this market, who knows everything beforehand: see `bound.py`. As
    many instances as the market ever lends are there all the time."""
    tokens = seconds = dollars = 0.0
    for step in range(config.settling_steps, steps):
        lengths = response_lengths(config.workload, seed=seed, step=step)
        found = step_bound(config, lengths, most_alive(market))
        tokens += float(lengths.sum())
        seconds, dollars = seconds + found.step, dollars + found.dollars
    return {"tokens_per_second": tokens / seconds, "tokens_per_dollar": tokens / dollars}


def most_alive(market: Market) -> int:
    """Instances on loan at once."""
    alive = itertools.accumulate(1 if change.added else -1 for change in market.changes)
    return max(alive, default=0)


def one(trace: str, hours: float, seed: int, lengths: Mapping[str, float]) -> dict[str, Any]:
    """All systems on one market with one seed."""
    config = settings(trace, hours, seed, lengths)
    (market,) = markets(config.market, seed=seed)
    found: dict[str, Any] = {}
    steps = 0
    for name, changes in SYSTEMS.items():
        used = replace(config, policy=replace(config.policy, **changes))
        rows = World(used, market.changes, seed=seed, seconds=market.seconds).run()
        outcome = Outcome(used, rows, settling=config.settling_steps)
        means = outcome.means()
        found[name] = {
            **{measure: getattr(outcome, measure) for measure in MEASURES},
            **{key: means[key] for key in KEPT},
            "instances_billed": sum(r["billed_instance_seconds"] for r in outcome.rows)
            / outcome.seconds,
        }
        steps = max(steps, len(rows))
    found["bound"] = bound(config, market, seed=seed, steps=steps)
    return found


def ratios(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """To the paper's policies on the same market: mean and half width of a 95 % interval."""
    table: dict[str, Any] = {}
    for name in (*SYSTEMS, "bound"):
        for measure in MEASURES:
            values = [run[name][measure] / run["paper"][measure] for run in runs]
            half = 1.96 * np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else 0
            table[f"{name}/{measure}"] = [round(float(np.mean(values)), 4), round(float(half), 4)]
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--trace", default="", help="CSV of an availability trace")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first_seed", type=int, default=0)
    parser.add_argument("--hours", type=float, default=1.2)
    parser.add_argument("--lengths", nargs="*", default=list(LENGTHS), choices=list(LENGTHS))
    parser.add_argument("--out", default=str(RESULTS))
    chosen = parser.parse_args()
    out = Path(chosen.out)
    results = json.loads(out.read_text()) if out.exists() else {}
    market = "trace" if chosen.trace else "hazard"
    for name in chosen.lengths:
        runs = []
        for seed in range(chosen.first_seed, chosen.first_seed + chosen.seeds):
            runs.append(one(chosen.trace, chosen.hours, seed, LENGTHS[name]))
            print(name, seed, json.dumps(runs[-1]), flush=True)
            results[f"{market}, {name}"] = {
                "hours": chosen.hours, "ratios": ratios(runs), "runs": runs,
            }  # fmt: skip
            out.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(ratios(runs), indent=1), flush=True)


if __name__ == "__main__":
    main()
