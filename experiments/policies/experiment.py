"""Do predicted windows, fleets sized by their price and merged tails beat RLBoost's policies?"""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from experiments.plots import COLOURS, FOLDER, Drawing, panels
from experiments.policies.known import tell_lengths
from experiments.simulated import ALL_FITTED, SEEDS, config_of, interval
from rlboost_jax.simulator.bound import step_bound
from rlboost_jax.simulator.colocated import colocated
from rlboost_jax.simulator.market.simulated_market import Market, markets, static
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.response_lengths import response_lengths
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.world import World

RESERVED: Final = 83.79  # dollars per hour of the reserved node
PRICED: Final = {"window": "model", "sizing": "marginal", "longest_first": True}
SYSTEMS: Final[Mapping[str, Mapping[str, Any]]] = {
    "paper": {"window": "paper", "sizing": "paper"},
    "window": {"window": "model", "sizing": "paper"},
    "sized": {**PRICED, "worth_per_hour": RESERVED},
    "cheap": {**PRICED, "merge_tail": True, "worth_per_hour": 0.0},
    "ours": {**PRICED, "merge_tail": True, "worth_per_hour": RESERVED},
    "fast": {**PRICED, "merge_tail": True, "worth_per_hour": 3 * RESERVED},
    "fastest": {**PRICED, "merge_tail": True, "worth_per_hour": 10 * RESERVED},
}
KNOWN: Final = "known"  # "fast" that knows all lengths beforehand, and in the best order for these
MERGED: Final = ("cheap", "ours", "fast", "fastest")
LENGTHS: Final[Mapping[str, Mapping[str, float]]] = {
    "as fitted": {},
    "growing 4 % a step": {"workload__mean_tokens": 2700.0, "workload__growth_per_step": 0.04},
    "wide, groups unlike": {"workload__sigma": 0.9, "workload__group_correlation": 0.3},
}
MEASURES: Final = ("tokens_per_second", "tokens_per_dollar")
Run = Mapping[str, Mapping[str, float]]  # system → its figures


def measure(
    *,
    trace: str = "",
    hours: float = 1.2,
    lengths: Sequence[str] = tuple(LENGTHS),
    seeds: Sequence[int] = SEEDS,
    small: bool = False,
) -> dict[str, Any]:
    """Length process → system → tokens per second and dollar over the paper's policies on the
    same market, the instances that were paid for, and how many times as fast as with co-located
    generation the step was that gained least, the first ones included.

    Args:
        trace: an availability trace, of which each seed keeps another half; "": a market of
            chance, another for each seed.
    """
    return {
        name: ratios([one(name, seed, trace=trace, hours=hours, small=small) for seed in seeds])
        for name in lengths
    }


def one(name: str, seed: int, *, trace: str, hours: float, small: bool = False) -> Run:
    """All systems on one market with one seed, and the bound."""
    if small:
        config = config_of("14b", small=True, seed=seed, **ALL_FITTED)
        market = static(3)
    else:
        config = config_of(
            "14b", seed=seed, num_steps=0, settling_steps=1,
            market__kind="trace" if trace else "hazard", market__path=trace,
            market__segments=((0.0, hours),), market__keep_fraction=0.5, market__keep_seed=seed,
            **{**ALL_FITTED, **LENGTHS[name]},
        )  # fmt: skip
        (market,) = markets(config.market, seed=seed)
    found: dict[str, dict[str, float]] = {}
    seconds: dict[str, list[float]] = {}  # of all steps
    for system, changes in {**SYSTEMS, KNOWN: SYSTEMS["fast"]}.items():
        used = replace(config, policy=replace(config.policy, **changes))
        world = World(used, market.changes, seed=seed, seconds=min(market.seconds, 1e6))
        if system == KNOWN:
            tell_lengths(world)
        rows = world.run()
        outcome = Outcome(used, rows, settling=config.settling_steps)
        billed = sum(row["billed_instance_seconds"] for row in outcome.rows)
        found[system] = {
            **{name: getattr(outcome, name) for name in MEASURES},
            "instances_billed": billed / outcome.seconds,
        }
        seconds[system] = [row["step_seconds"] for row in rows]
    steps = max(map(len, seconds.values()))
    alone = colocated(replace(config, num_steps=steps), seed=seed, seconds=math.inf)
    for system, own in seconds.items():
        found[system]["least_gain"] = min(
            row["step_seconds"] / step for row, step in zip(alone, own, strict=False)
        )
    found["bound"] = bound(config, market, seed=seed, steps=steps)
    return found


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


def ratios(runs: Sequence[Run]) -> dict[str, Any]:
    """To the paper's policies, seed by seed: means and intervals."""
    table: dict[str, dict[str, Any]] = {
        system: {
            **{
                name: interval([run[system][name] / run["paper"][name] for run in runs])
                for name in MEASURES
            },
            "instances_billed": interval([run[system].get("instances_billed") for run in runs]),
        }
        for system in (*SYSTEMS, KNOWN, "bound")
    }
    for system in (*SYSTEMS, KNOWN):
        table[system]["least_gain"] = min(run[system]["least_gain"] for run in runs)
    return {**table, "tokens_per_dollar_as_fast": interval([as_fast(run) for run in runs])}


def as_fast(run: Run) -> float | None:
    """Tokens per dollar over the paper's at the paper's throughput: between those two systems with
    merged tails that are next to it, on a straight line; None where all are slower, or faster."""
    points = sorted(
        tuple(run[system][name] / run["paper"][name] for name in MEASURES) for system in MERGED
    )
    for (slow, cheap), (fast, dear) in itertools.pairwise(points):
        if slow <= 1.0 < fast:
            return cheap + (dear - cheap) * (1.0 - slow) / (fast - slow)
    return None


def kept() -> dict[str, Any]:
    """What `compare` found on a trace."""
    return dict(json.loads((FOLDER / "policies" / "results.json").read_text()))


def figure(results: dict[str, Any]) -> Drawing:
    """Tokens per dollar against tokens per second, a panel for each length process."""
    drawn, axes = panels(len(results))
    for panel, (name, systems) in zip(axes, results.items(), strict=True):
        for number, system in enumerate(SYSTEMS):
            x, y = (systems[system][measure] for measure in MEASURES)
            panel.errorbar(
                x["mean"], y["mean"], xerr=x["half_width"] or 0.0, yerr=y["half_width"] or 0.0,
                marker="o", ms=4, capsize=2, linestyle="", label=system,
                color=("black", *COLOURS)[number],
            )  # fmt: skip
        panel.axhline(1.15, color="grey", lw=0.8, ls=":")
        panel.axvline(1.0, color="grey", lw=0.8, ls=":")
        panel.set_title(name, fontsize=8)
        panel.set_xlabel("tokens per second / paper")
    axes[0].set_ylabel("tokens per dollar / paper")
    for panel in axes[1:]:
        panel.set_ylabel("tokens per dollar / paper")
    axes[0].legend(fontsize=7)
    return drawn
