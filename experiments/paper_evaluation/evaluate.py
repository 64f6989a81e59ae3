"""Simulate the published evaluation, with one set of parameters, and compare.

    python -m experiments.paper_evaluation.evaluate --part=static --trace=aws-p3.csv
    python -m experiments.paper_evaluation.evaluate --compare

A part writes `results/<part>.json`; `--compare` writes `results.json` and prints the table of
README.md. Parts do not depend on each other and may run side by side.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.sim import paper_segments
from experiments.migration import experiment as migration
from experiments.seeding_window.experiment import loss_and_return
from experiments.simulated import config_of
from rlboost_jax.simulator.load import sim_config
from rlboost_jax.simulator.markets import markets, static
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.systems import rows_of

FOLDER = Path(__file__).parent
SETTLING = config_of("14b").settling_steps
SEED = 0


def ratios(
    config: SimConfig, instances: Sequence[int], systems: Sequence[str] = ("rlboost",)
) -> dict[str, dict[str, dict[str, float]]]:
    """system → instances → what it gains over the co-located baseline."""
    fleet = static(0)
    baseline = Outcome(*rows_of("colocated_static", config, fleet, seed=SEED), settling=SETTLING)
    found: dict[str, dict[str, dict[str, float]]] = {
        "colocated": {"0": {**baseline.means(), "tokens_per_second": baseline.tokens_per_second}}
    }
    for system in systems:
        for count in instances:
            outcome = Outcome(*rows_of(system, config, static(count), seed=SEED), settling=SETTLING)
            row = {**outcome.means(), **outcome.against(baseline)}
            row["tokens_per_second"] = outcome.tokens_per_second
            row["instance_cap"] = outcome.rows[-1].get("instance_cap", 0)
            found.setdefault(system, {})[str(count)] = row
    return found


def static_part(model: str, instances: Sequence[int]) -> dict[str, Any]:
    config = config_of(model)
    found: dict[str, Any] = ratios(config, instances)
    found |= {k: v for k, v in ratios(config, (0,), ("colocated_2x",)).items() if k[-1] == "x"}
    return found


def segments(model: str, trace: str, keep: float) -> dict[str, Any]:
    """Ten hours in one run, as a run meets them, and of that the means of the segments."""
    config = paper_segments.get_config(model)
    config.market.path, config.market.keep_fraction = trace, keep
    bounds = config.market.segments
    config.market.segments = ((0.0, 10.0),)
    whole = sim_config(config)
    (market,) = markets(whole.market, seed=SEED)
    used, rows = rows_of("rlboost", whole, market, seed=SEED)
    alone, baseline = rows_of("colocated_static", whole, market, seed=SEED)
    results = []
    for begin, end in bounds:
        own, theirs = (_between(each, begin, end) for each in (rows, baseline))
        outcome, other = (
            Outcome(config, part, settling=0) for config, part in ((used, own), (alone, theirs))
        )
        results.append(
            {"market": f"{begin:g}-{end:g} h", **outcome.means(), **outcome.against(other)}
        )
    keys = ("throughput_ratio", "cost_efficiency", "instances_mean")
    means = {key: sum(row[key] for row in results) / len(results) for key in keys}
    return {"mean_over_markets": {"rlboost": means}, "results": results}


def _between(rows: Sequence[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """Steps of which the middle is between two hours."""
    return [
        row for row in rows if begin <= (row["begun_at"] + row["step_seconds"] / 2) / 3600 < end
    ]


def disaggregated(model: str, instances: Sequence[int]) -> dict[str, Any]:
    """The most cost-efficient of some sizes."""
    return ratios(config_of(model), instances, ("disaggregated",))


def lengths() -> dict[str, Any]:
    short = config_of("14b", workload__max_response_tokens=5120)
    return {"5k": ratios(short, (2, 3, 4)), "14k": ratios(config_of("14b"), (6,))}


def seeding() -> dict[str, Any]:
    """Five of six instances go and come back one by one, one every 25 minutes."""
    config = replace(config_of("14b"), settling_steps=0)
    gone = 4 * 3600.0  # settled by then
    market = loss_and_return(gone, 1500.0, gone + 3 * 3600.0)
    found = {}
    for system in ("rlboost", "no_memory", "no_seeding"):
        used, rows = rows_of(system, config, market, seed=SEED)
        after = [row for row in rows if row["begun_at"] + row["step_seconds"] > gone]
        found[system] = Outcome(used, after, settling=0).tokens_per_second
    return found


def faults() -> dict[str, Any]:
    """Half of six instances are lost in a settled step; what that adds to it."""
    added = migration.measure(moments=(100.0, 200.0), seeds=(SEED,))
    return {
        moment: {way: row[way]["mean"] for way in migration.WAYS} for moment, row in added.items()
    }


def parts(trace: str) -> dict[str, Callable[[], Any]]:
    return {
        "static_14b": lambda: static_part("14b", (0, 1, 2, 4, 6, 8)),
        "static_8b": lambda: static_part("8b", (1, 2, 3, 4)),
        "static_32b": lambda: static_part("32b", (4, 8)),
        "segments_8b": lambda: segments("8b", trace, 0.5),
        "segments_14b": lambda: segments("14b", trace, 0.5),
        "segments_32b": lambda: segments("32b", trace, 0.5),
        "scarce_8b": lambda: segments("8b", trace, 0.25),
        "scarce_14b": lambda: segments("14b", trace, 0.25),
        "scarce_32b": lambda: segments("32b", trace, 0.25),
        "disaggregated_8b": lambda: disaggregated("8b", (4, 6)),
        "disaggregated_14b": lambda: disaggregated("14b", (6, 8)),
        "disaggregated_32b": lambda: disaggregated("32b", (10, 14)),
        "public_code_14b": lambda: ratios(config_of("14b"), (1, 6), ("public_code",)),
        "public_code_8b": lambda: ratios(config_of("8b"), (2, 4), ("public_code",)),
        "lengths": lengths,
        "seeding": seeding,
        "faults": faults,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", nargs="*", default=[], help="names, or the beginnings of some")
    parser.add_argument("--trace", default="", help="an availability trace, for segments")
    parser.add_argument("--compare", action="store_true")
    chosen = parser.parse_args()
    (FOLDER / "results").mkdir(exist_ok=True)
    for name, part in parts(chosen.trace).items():
        if any(name.startswith(prefix) for prefix in chosen.part):
            found = part()
            (FOLDER / "results" / f"{name}.json").write_text(
                json.dumps(found, indent=1, allow_nan=False) + "\n"
            )
            print(name, "done", flush=True)
    if chosen.compare:
        from experiments.paper_evaluation.compare import compare

        print(compare(FOLDER))


if __name__ == "__main__":
    main()
