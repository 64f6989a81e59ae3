"""Does `rlboost plan` forecast a market that it has not seen?

    python -m experiments.plan.experiment [NAME=TRACE.csv …]

Each trace is cut in two. The first half is what a price list knows: the trace itself, or losses per
hour and time away that are fitted to it. The second half, with other response lengths, is what
comes. Synthetic traces are drawn where none is named. Writes `results.json`.
"""

import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from experiments.simulated import config_of
from rlboost_jax.settings.traces import TraceRow
from rlboost_jax.simulator.market.availability import cut, read_availability
from rlboost_jax.simulator.market.hazard import HOUR, draw, fit
from rlboost_jax.simulator.plan.mix_market import replayed
from rlboost_jax.simulator.plan.mix_run import Horizon, horizon_of, run_mix, sample_of
from rlboost_jax.simulator.plan.mixes import Mix
from rlboost_jax.simulator.plan.price_list import InstanceType, PriceList
from rlboost_jax.simulator.plan.purchase import Purchase, purchase_of
from rlboost_jax.simulator.sim_config import HazardConfig
from rlboost_jax.simulator.world import World

FOLDER: Final = Path(__file__).parent
HAZARDS: Final = {  # name → a synthetic market
    "steady": HazardConfig(
        machines=10.0, lifetime_hours=2.0, batch_size=1.0, drought_hours=0, drought_gap_hours=0
    ),
    "batches": HazardConfig(
        machines=8.0, lifetime_hours=1.0, batch_size=3.0, drought_hours=0, drought_gap_hours=0
    ),
    "droughts": HazardConfig(
        machines=8.0, lifetime_hours=1.0, batch_size=2.0, drought_hours=0.4, drought_gap_hours=1.6
    ),
}
HOURS: Final = 8.0  # of a synthetic trace
SMALL_HOURS: Final = 2.0
COUNTS: Final = (4, 10)  # instances that are bought
SEEDS: Final = (0, 1, 2)  # of lengths and, of synthetic traces, of the market
STEPS: Final = 12  # that are simulated of a forecast
AHEAD: Final = 100  # between the seeds of a forecast and of what comes
WORKLOAD: Final = {  # over the small one: steps of a minute or two that instances make half as long
    "workload__prompts_per_step": 32,
    "workload__mean_tokens": 2000.0,
    "workload__max_response_tokens": 6000,
    "policy__window_initial_seconds": 20.0,
}


def measure(traces: dict[str, Path], *, small: bool = False) -> list[dict[str, Any]]:
    """A row per trace, number of instances, seed and way of knowing the market.

    Args:
        small: one synthetic trace, of which nothing follows.
    """
    found = []
    seeds, hours = (SEEDS[:1], SMALL_HOURS) if small else (SEEDS, HOURS)
    for name, seed, rows in _traces(traces, seeds, hours):
        for count in COUNTS[:1] if small else COUNTS:
            found += _compare(name, rows, count, seed, steps=4 if small else STEPS, small=small)
            print(json.dumps(found[-2:]), flush=True)
            if small:
                return found
    return found


def _traces(traces: dict[str, Path], seeds: Sequence[int], hours: float) -> Any:
    for name, path in traces.items():
        rows = read_availability(path)
        yield from ((name, seed, rows) for seed in seeds)
    for name, hazard in HAZARDS.items():
        yield from ((name, seed, draw(hazard, hours=hours, seed=seed)) for seed in seeds)


def _compare(
    name: str, rows: Sequence[TraceRow], count: int, seed: int, *, steps: int, small: bool
) -> list[dict[str, Any]]:
    end = rows[-1].milliseconds
    seen, unseen = cut(rows, 0.0, end / 2), cut(rows, end / 2, end)
    config = config_of("14b", small=True, **({} if small else WORKLOAD))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seen.csv"
        closing = f"{end / 2:.0f},remove,nobody\n"  # where it ends
        lines = (f"{row.milliseconds:.0f},{row.action},{row.name}\n" for row in seen)
        path.write_text("".join(lines) + closing)
        ways = {"replayed": {"trace": str(path)}, "fitted": _fitted(seen, count, end / 2 / HOUR)}
        came = _came(_purchase(config, {}), unseen, count, seed + AHEAD, end / 2000, settling=3)
        found = []
        for way, known in ways.items():
            purchase = _purchase(config, known)
            horizon = horizon_of(
                run_steps=10**6, steps=steps, settling=3 if steps > 4 else 1, seeds=(seed,)
            )
            row = _forecast(purchase, count, horizon, seeds=3)
            found.append(
                {
                    "trace": name, "seed": seed, "instances": count, "way": way,
                    **{f"forecast_{key}": value for key, value in row.items()},
                    **{f"measured_{key}": value for key, value in came.items()},
                    **{f"{key}_ratio": row[key] / came[key] for key in row},
                }
            )  # fmt: skip
        return found


def _purchase(config: Any, known: dict[str, Any]) -> Purchase:
    spot = InstanceType(
        name="spot", price_per_hour=5.32, start_seconds=60.0, max_instances=16, **known
    )
    return purchase_of(config, PriceList(instances=(spot,)), measured=False)


def _fitted(seen: Sequence[TraceRow], count: int, hours: float) -> dict[str, float]:
    """Losses of a machine, and time away such that as many of those bought are there."""
    lifetime = fit(seen, hours=hours).lifetime_hours
    there = at = held = 0.0
    for row in (*seen, TraceRow(milliseconds=hours * HOUR, action="add", name="")):
        held += min(count, there) * (row.milliseconds - at)
        at = row.milliseconds
        there += 1 if row.action == "add" else -1
    share = min(1.0, held / (count * hours * HOUR))
    away = lifetime * 3600 * (1 - share) / share
    return {"losses_per_hour": 1 / lifetime, "away_seconds": away}


def _forecast(purchase: Purchase, count: int, horizon: Horizon, *, seeds: int) -> dict[str, float]:
    """Forecast of a step's seconds and dollars, on average."""
    samples = [
        run_mix(purchase, Mix((count,)), horizon, seed=horizon.seeds[0] + 10 * seed)
        for seed in range(seeds)
    ]
    return {
        "seconds": statistics.fmean(s.seconds for s in samples) / horizon.run_steps,
        "dollars": statistics.fmean(s.dollars for s in samples) / horizon.run_steps,
    }


def _came(
    purchase: Purchase,
    unseen: Sequence[TraceRow],
    count: int,
    seed: int,
    seconds: float,
    *,
    settling: int,
) -> dict[str, float]:
    """Actual seconds and dollars of a step, on average over all whole ones but the first few."""
    config = replace(purchase.learners[0], num_steps=0)
    last = TraceRow(milliseconds=2000 * seconds, action="remove", name="nobody")
    market = replayed((*unseen, last), "spot", count, begin=0.0, seconds=seconds)
    machines = purchase.machines((count,), 0)
    world = World(config, tuple(market), seed=seed, seconds=seconds, machines=machines)
    rows = world.run()[settling:]
    horizon = Horizon(run_steps=len(rows), steps=len(rows), settling=0, seeds=(seed,))
    sample = sample_of(config, rows, horizon)
    return {"seconds": sample.seconds / len(rows), "dollars": sample.dollars / len(rows)}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By trace and way: the mean ratio, and how many are within a tenth."""
    found: dict[str, Any] = {}
    for row in rows:
        found.setdefault(f"{row['trace']} {row['way']}", []).append(row)
    return {
        name: {
            key: {
                "mean_ratio": statistics.fmean(r[f"{key}_ratio"] for r in own),
                "worst": max((r[f"{key}_ratio"] for r in own), key=lambda x: abs(x - 1)),
                "within_a_tenth": sum(abs(r[f"{key}_ratio"] - 1) <= 0.1 for r in own),
                "of": len(own),
            }
            for key in ("seconds", "dollars")
        }
        for name, own in found.items()
    }


if __name__ == "__main__":
    named = dict(argument.split("=", 1) for argument in sys.argv[1:])
    results = measure({name: Path(path) for name, path in named.items()})
    found = {"summary": summary(results), "rows": results}
    (FOLDER / "results.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, row in found["summary"].items():
        print(name, json.dumps(row))
