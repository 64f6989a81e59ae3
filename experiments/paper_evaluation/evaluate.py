"""Simulate the published evaluation, with one set of parameters, and compare.

    python -m experiments.paper_evaluation.evaluate --part=static --trace=aws-p3.csv
    python -m experiments.paper_evaluation.evaluate --compare

A part writes `results/<part>.json`, of every seed what it found; `--compare` writes `results.json`
and `figure.svg` and prints the table of README.md. Parts do not depend on each other and may run
side by side.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from configs.sim import paper_segments
from experiments.migration import experiment as migration
from experiments.paper_evaluation.compare import FOLDER, compared, table
from experiments.paper_evaluation.experiment import figure
from experiments.plots import save
from experiments.seeding_window.experiment import HOUR, LEVEL, loss_and_return
from experiments.simulated import SEEDS, config_of
from rlboost_jax.simulator.intervals import Number, mean
from rlboost_jax.simulator.load import sim_config
from rlboost_jax.simulator.markets import markets, static
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.systems import rows_of

# Of the trace's machines: as many as were paid for on average by the published cost efficiencies
# (3.8, 5.1, 5.7 instances), over the draws of SEEDS.
SHARES = {"8b": 0.15, "14b": 0.21, "32b": 0.24}


def ratios(
    config: SimConfig, instances: Sequence[int], systems: Sequence[str] = ("rlboost",), *, seed: int
) -> dict[str, dict[str, dict[str, Number]]]:
    """system → instances → what it gains over the co-located baseline."""

    def outcome(system: str, count: int) -> Outcome:
        simulated = rows_of(system, config, static(count), seed=seed)
        return Outcome(*simulated, settling=config.settling_steps)

    baseline = outcome("colocated_static", 0)
    found: dict[str, dict[str, dict[str, Number]]] = {
        "colocated": {"0": {**baseline.means(), "tokens_per_second": baseline.tokens_per_second}}
    }
    for system in systems:
        for count in instances:
            own = outcome(system, count)
            row = {**own.means(), **own.against(baseline)}
            row["tokens_per_second"] = own.tokens_per_second
            row["instance_cap"] = own.rows[-1].get("instance_cap", 0)
            found.setdefault(system, {})[str(count)] = row
    return found


def static_part(model: str, instances: Sequence[int], *, seed: int) -> dict[str, Any]:
    config = config_of(model)
    found: dict[str, Any] = ratios(config, instances, seed=seed)
    twice = ratios(config, (0,), ("colocated_2x",), seed=seed)
    return {**found, "colocated_2x": twice["colocated_2x"]}


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
    alone, baseline = rows_of("colocated_static", whole, market, seed=seed)
    assert rows is not None and baseline is not None
    results = []
    for begin, end in bounds:
        own, theirs = (_between(each, begin, end) for each in (rows, baseline))
        outcome, other = (
            Outcome(config, part, settling=0) for config, part in ((used, own), (alone, theirs))
        )
        paid = sum(row["billed_instance_seconds"] for row in outcome.rows) / outcome.seconds
        results.append(
            {
                "market": f"{begin:g}-{end:g} h",
                "instances_paid": paid,
                **outcome.means(),
                **outcome.against(other),
            }
        )
    keys = ("throughput_ratio", "cost_efficiency", "break_even_discount", "instances_paid")
    means = {key: mean([row[key] for row in results]) for key in keys}
    return {"means": means, "results": results}


def _between(rows: Sequence[dict[str, Any]], begin: float, end: float) -> list[dict[str, Any]]:
    """Steps of which the middle is between two hours."""
    return [
        row for row in rows if begin <= (row["begun_at"] + row["step_seconds"] / 2) / 3600 < end
    ]


def disaggregated(model: str, instances: Sequence[int], *, seed: int) -> dict[str, Any]:
    """The most cost-efficient of some sizes."""
    return ratios(config_of(model), instances, ("disaggregated",), seed=seed)


def lengths(*, seed: int) -> dict[str, Any]:
    short = config_of("14b", workload__max_response_tokens=5120)
    return {
        "5k": ratios(short, (2, 3, 4), seed=seed),
        "14k": ratios(config_of("14b"), (6,), seed=seed),
    }


def seeding(*, seed: int) -> dict[str, Any]:
    """Tokens/s from the loss of five of six instances until they are all back."""
    config = replace(config_of("14b"), settling_steps=0)
    market, gone = loss_and_return(LEVEL * HOUR)
    found = {}
    for system in ("rlboost", "no_memory", "no_seeding"):
        used, rows = rows_of(system, config, market, seed=seed)
        assert rows is not None
        after = [row for row in rows if row["begun_at"] + row["step_seconds"] > gone]
        found[system] = Outcome(used, after, settling=0).tokens_per_second
    return found


def faults(*, seed: int) -> dict[str, Any]:
    """Half of six instances are lost in a settled step; what that adds to it."""
    added = migration.measure(moments=(100.0, 200.0), seeds=(seed,))
    return {
        moment: {way: row[way]["mean"] for way in migration.WAYS} for moment, row in added.items()
    }


def public_code(model: str, instances: Sequence[int], *, seed: int) -> dict[str, Any]:
    return ratios(config_of(model), instances, ("public_code",), seed=seed)


def parts(trace: str) -> dict[str, Callable[..., Any]]:
    """By name; each takes a seed."""
    return {
        "static_14b": partial(static_part, "14b", (0, 1, 2, 4, 6, 8)),
        "static_8b": partial(static_part, "8b", (1, 2, 3, 4)),
        "static_32b": partial(static_part, "32b", (4, 8)),
        **{f"segments_{model}": partial(segments, model, trace) for model in SHARES},
        "disaggregated_8b": partial(disaggregated, "8b", (4, 6)),
        "disaggregated_14b": partial(disaggregated, "14b", (6, 8)),
        "disaggregated_32b": partial(disaggregated, "32b", (10, 14)),
        "public_code_14b": partial(public_code, "14b", (1, 6)),
        "public_code_8b": partial(public_code, "8b", (2, 4)),
        "lengths": lengths,
        "seeding": seeding,
        "faults": faults,
    }


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
