"""What do two runs save that share one fleet, and what does it cost each of them?

python -m experiments.two_jobs.experiment > experiments/two_jobs/results.jsonl
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from experiments.simulated import TINY
from rlboost_jax.configs.sim import h100
from rlboost_jax.simulator.economics import dollars
from rlboost_jax.simulator.intervals import mean
from rlboost_jax.simulator.market.simulated_market import Market, markets, static
from rlboost_jax.simulator.neighbour_worlds import neighbours
from rlboost_jax.simulator.sim_config import HazardConfig, SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.world import World

Fleet = int | str  # instances that stay, or the number of a synthetic market's seed and its size
MODELS: Final = {"8B": "qwen3_8b_openr1", "14B": "qwen3_14b_openr1"}
SETTLING: Final = 2  # steps at the beginning that are left out
SECONDS: Final = 2880.0
SEEDS: Final = (0, 1)
Case = tuple[tuple[str, str], Fleet, Fleet]
# Models of the two runs, instances of each alone, and those of both together.
CASES: Final[tuple[Case, ...]] = (
    (("14B", "14B"), 4, 6),
    (("14B", "14B"), "market 4", "market 6"),
    (("14B", "14B"), 4, 4),
    (("8B", "8B"), 4, 6),
    (("8B", "14B"), 8, 12),
)
KINDS: Final = ("alone", "split", "shared")


@cache
def config_of(model: str, *, small: bool = False) -> SimConfig:
    values = h100.get_config(MODELS[model])
    if small:
        small_values = {**TINY, "engine.table": (), "trainer.micro_batch_prompts": 4}
        values.update_from_flattened_dict(small_values)
    config = sim_config(values)
    return replace(config, num_steps=0, policy=replace(config.policy, window="model"))


@cache
def market_of(fleet: Fleet, seed: int, seconds: float) -> Market:
    """A fixed fleet, or a synthetic market of so many machines on average that nothing was tuned
    on."""
    if isinstance(fleet, int):
        return static(fleet)
    hazard = HazardConfig(
        machines=float(fleet.split()[-1]),
        lifetime_hours=0.5,
        batch_size=2.0,
        drought_hours=0.1,
        drought_gap_hours=0.5,
    )
    config = sim_config(h100.get_config(MODELS["14B"])).market
    config = replace(config, kind="hazard", hazard=hazard, segments=((0.0, seconds / 3600),))
    (market,) = markets(config, seed=100 + seed)
    return market


@cache
def alone(
    model: str, fleet: Fleet, seed: int, *, seconds: float, small: bool
) -> list[dict[str, Any]]:
    market = market_of(fleet, seed, seconds)
    made = World(config_of(model, small=small), market.changes, seed=seed, seconds=seconds)
    return made.run()


def halves(fleet: Fleet) -> Fleet:
    """What each run has of a fleet that is divided once and for all."""
    if isinstance(fleet, int):
        return fleet // 2
    return f"market {int(fleet.split()[-1]) // 2}"


def measure(
    cases: Sequence[Case] = CASES,
    *,
    seeds: Sequence[int] = SEEDS,
    seconds: float = SECONDS,
    settling: int = SETTLING,
    small: bool = False,
) -> Iterator[dict[str, Any]]:
    """A row for each case and seed: what a step of each run takes, alone, beside and sharing."""
    for seed in seeds:
        for models, each, together in cases:
            configs = [config_of(model, small=small) for model in models]
            found: dict[str, list[list[dict[str, Any]]]] = {
                kind: [
                    alone(model, fleet, seed + number, seconds=seconds, small=small)
                    for number, model in enumerate(models)
                ]
                for kind, fleet in (("alone", each), ("split", halves(together)))
            }
            market = market_of(together, seed, seconds)
            found["shared"], machines = neighbours(
                configs, market.changes, seeds=(seed, seed + 1), seconds=seconds
            )
            row: dict[str, Any] = {
                "models": models,
                "each": each,
                "together": together,
                "seed": seed,
                "handovers": machines.handovers,
            }
            for kind in KINDS:
                row[kind] = [
                    _figures(config, found[kind][number][settling : _common(found, number)])
                    for number, config in enumerate(configs)
                ]
            yield row


def _common(found: Mapping[str, Sequence[Sequence[Any]]], number: int) -> int:
    """Steps that a run has done in every way: the same ones have the same lengths."""
    return min(len(rows[number]) for rows in found.values())


def _figures(config: SimConfig, settled: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    return {
        "steps": len(settled),
        "step_seconds": mean([row["step_seconds"] for row in settled]),
        "fleet_seconds": mean([row["billed_instance_seconds"] for row in settled]),
        "dollars": mean([dollars(config, row) for row in settled]),
        "prefilled_again": mean([row["tokens_prefilled_again"] for row in settled]),
        "response_tokens": mean([row["response_tokens"] for row in settled]),
    }


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Lines of the README's table: one for each case and seed."""
    yield (
        "| runs | each alone | both together | seed | fleet-seconds | step of each "
        "| the same, split | dollars | prefilled again |"
    )
    yield "|:--|--:|--:|--:|--:|--:|--:|--:|--:|"
    for row in sorted(rows, key=lambda row: CASES.index(_case(row))):
        own = [row]
        yield (
            f"| {' + '.join(row['models'])} | {row['each']} | {row['together']} | {row['seed']} "
            f"| {total(own, 'fleet_seconds'):.2f} | {_steps(own, 'shared')} "
            f"| {_steps(own, 'split')} | {total(own, 'dollars'):.2f} "
            f"| {_again(own, 'alone'):.0%}, {_again(own, 'shared'):.0%} |"
        )


def _case(row: Mapping[str, Any]) -> Case:
    first, second = row["models"]
    return (first, second), row["each"], row["together"]


def total(rows: Sequence[Mapping[str, Any]], name: str, kind: str = "shared") -> float:
    """What a step of both runs takes together, as a share of what it takes alone."""
    return float(
        mean([sum(r[name] for r in row[kind]) / sum(r[name] for r in row["alone"]) for row in rows])
    )


def longer(rows: Sequence[Mapping[str, Any]], kind: str, number: int) -> float:
    """Step time of a run, in that of the run alone."""
    name = "step_seconds"
    return float(mean([row[kind][number][name] / row["alone"][number][name] for row in rows]))


def _again(rows: Sequence[Mapping[str, Any]], kind: str) -> float:
    """Tokens prefilled again for one that was sampled."""
    both = [figures for row in rows for figures in row[kind]]
    return float(mean([f["prefilled_again"] / f["response_tokens"] for f in both]))


def _steps(rows: Sequence[Mapping[str, Any]], kind: str) -> str:
    return ", ".join(f"{longer(rows, kind, number):.2f}" for number in (0, 1))


if __name__ == "__main__":
    for found_row in measure():
        print(json.dumps(found_row), flush=True)
