"""Simulate what the experiments beside this one leave of the published evaluation, and compare.

    python -m experiments.paper_evaluation.evaluate --part segments --trace=aws-p3.csv
    python -m experiments.paper_evaluation.evaluate --compare

A part writes `results/<part>.json`, of every seed what it found; `--compare` writes `results.json`
and `figure.svg` and prints the table of README.md. Parts do not depend on each other and may run
side by side.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from configs.sim import paper_segments
from experiments.paper_evaluation.compare import FOLDER, compared, table
from experiments.paper_evaluation.experiment import figure
from experiments.plots import save
from experiments.simulated import SEEDS, config_of, outcome
from rlboost_jax.simulator.intervals import Number, mean
from rlboost_jax.simulator.market.simulated_market import markets
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.systems import rows_of

# Of the trace's machines: as many as were paid for on average by the published cost efficiencies
# (3.8, 5.1, 5.7 instances), over the draws of SEEDS.
SHARES = {"8b": 0.15, "14b": 0.21, "32b": 0.24}


def ratios(
    config: SimConfig, system: str, instances: Sequence[int], *, seed: int
) -> dict[str, dict[str, Number]]:
    """Instances → what a system gains over the co-located baseline."""
    baseline = outcome("colocated_static", config, 0, seed=seed)
    found = {}
    for count in instances:
        own = outcome(system, config, count, seed=seed)
        found[str(count)] = {
            **own.means(),
            **own.against(baseline),
            "tokens_per_second": own.tokens_per_second,
        }
    return found


def colocated(*, seed: int, config_of: Callable[[str], SimConfig] = config_of) -> dict[str, Any]:
    """Model → what the baseline does, and twice the nodes over that."""
    found = {}
    for model in SHARES:
        config = config_of(model)
        one, twice = (
            outcome(system, config, 0, seed=seed) for system in ("colocated_static", "colocated_2x")
        )
        rollout = sum(row["rollout_seconds"] for row in one.rows)
        found[model] = {
            "tokens_per_second": one.tokens_per_second,
            "rollout_share": rollout / one.seconds,
            "twice": twice.tokens_per_second / one.tokens_per_second,
        }
    return found


def segments(model: str, trace: str, *, seed: int) -> dict[str, Any]:
    """Ten hours in one run, as a run meets them, and of that the means of the segments. The seed
    also says which machines are kept."""
    config = paper_segments.get_config(model)
    config.market.path, config.market.keep_fraction = trace, SHARES[model]
    config.market.keep_seed = seed
    bounds = config.market.segments
    config.market.segments = ((0.0, 10.0),)
    whole = sim_config(config)
    (market,) = markets(whole.market, seed=seed)
    used, rows = rows_of("rlboost", whole, market, seed=seed)
    alone, their_rows = rows_of("colocated_static", whole, market, seed=seed)
    assert rows is not None and their_rows is not None
    results = []
    for begin, end in bounds:
        own, theirs = (_between(each, begin, end) for each in (rows, their_rows))
        ours, baseline = (
            Outcome(config, part, settling=0) for config, part in ((used, own), (alone, theirs))
        )
        paid = sum(row["billed_instance_seconds"] for row in ours.rows) / ours.seconds
        results.append(
            {
                "market": f"{begin:g}-{end:g} h",
                "instances_paid": paid,
                **ours.means(),
                **ours.against(baseline),
            }
        )
    keys = ("throughput_ratio", "cost_efficiency", "instances_paid")
    means = {key: mean([row[key] for row in results]) for key in keys}
    return {"means": means, "results": results}


def _between(rows: Sequence[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """Steps of which the middle is between two hours."""
    return [
        row for row in rows if begin <= (row["begun_at"] + row["step_seconds"] / 2) / 3600 < end
    ]


def parts(trace: str) -> dict[str, Callable[..., Any]]:
    """By name; each takes a seed."""
    found: dict[str, Callable[..., Any]] = {"colocated": colocated}
    for model in SHARES:
        found[f"segments_{model}"] = partial(segments, model, trace)
    for model, sizes in {"8b": (4, 6), "14b": (6, 8), "32b": (10, 14)}.items():
        config = config_of(model)
        found[f"disaggregated_{model}"] = partial(ratios, config, "disaggregated", sizes)
    for model, sizes in {"14b": (1, 6), "8b": (2, 4)}.items():
        found[f"public_code_{model}"] = partial(ratios, config_of(model), "public_code", sizes)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="*", default=[], help="names, or the beginnings of some")
    parser.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    parser.add_argument("--trace", default="", help="an availability trace, for segments")
    parser.add_argument("--compare", action="store_true")
    chosen = parser.parse_args()
    (FOLDER / "results").mkdir(exist_ok=True)
    for name, part in parts(chosen.trace).items():
        if any(name.startswith(prefix) for prefix in chosen.part):
            found = {str(seed): part(seed=seed) for seed in chosen.seeds}
            (FOLDER / "results" / f"{name}.json").write_text(
                json.dumps(found, indent=1, allow_nan=False) + "\n"
            )
            print(name, "done", flush=True)
    if chosen.compare:
        rows = compared(FOLDER)
        save("paper_evaluation", rows, figure(rows))
        print(table(rows))


if __name__ == "__main__":
    main()
