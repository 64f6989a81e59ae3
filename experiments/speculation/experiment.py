"""What do drafts gain for a whole run, over RLBoost's policies without any?

python -m experiments.speculation.experiment > experiments/speculation/results.jsonl
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from experiments.simulated import TINY, gains, outcome
from rlboost_jax.configs.sim import h100
from rlboost_jax.simulator.market.simulated_market import Market, markets
from rlboost_jax.simulator.sim_config import HazardConfig, SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.systems import PUBLISHED

PRESETS: Final = ("qwen3_8b_openr1", "qwen3_14b_openr1")
ACCEPTANCES: Final = (0.3, 0.5, 0.65, 0.8, 0.9)
USUAL: Final = 0.65  # of the cases that have no sweep
HOURS: Final = 1.0
HAZARD: Final = HazardConfig(
    machines=4.0,
    lifetime_hours=0.5,
    batch_size=2.0,
    drought_hours=0.1,
    drought_gap_hours=0.5,
)
MARKET_SEEDS: Final = (101, 102)


def config_of(
    preset: str, acceptance: float = 0.0, *, ordered: bool = True, small: bool = False
) -> SimConfig:
    """A preset on H100s.

    Args:
        acceptance: of each draft; 0: there are none.
        ordered: whether one response of each prompt goes first where there are drafts.
    """
    values = h100.get_config(preset)
    values.num_steps, values.settling_steps = (2, 1) if small else (14, 6)
    if small:
        values.update_from_flattened_dict({**TINY, "engine.table": ()})
    if acceptance:
        values.engine.most_drafts = h100.MOST_DRAFTS
        values.engine.draft_acceptance = acceptance
    config = sim_config(values)
    ordered = ordered and acceptance > 0
    return replace(config, policy=replace(config.policy, siblings_follow=ordered))


def cases() -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, arguments of `config_of`, and system of each case besides what was published."""
    yield "no drafts", {}, "model_window"
    for acceptance in ACCEPTANCES:
        yield f"drafts {acceptance}", {"acceptance": acceptance}, "model_window"
    yield f"in order of prompts {USUAL}", {"acceptance": USUAL, "ordered": False}, "model_window"
    yield "lag 1", {}, "lag_1"
    yield f"lag 1, drafts {USUAL}", {"acceptance": USUAL}, "lag_1"


def measure(
    *,
    presets: Sequence[str] = PRESETS,
    instances: Sequence[int] = (2, 4),
    market_seeds: Sequence[int] = MARKET_SEEDS,
    seeds: Sequence[int] = (0, 1),
    small: bool = False,
) -> Iterator[dict[str, Any]]:
    """A row for each preset, fleet or market, and case: gains over RLBoost as published."""
    for preset in presets:
        fleets: list[tuple[str, int | Market]] = [(f"{count}", count) for count in instances]
        if preset == PRESETS[0]:  # an hour has few steps of the other
            fleets += [(f"market {seed}", _market(seed, small)) for seed in market_seeds]
        for name, fleet in fleets:
            plain = config_of(preset, small=small)
            published = [outcome(PUBLISHED, plain, fleet, seed=seed) for seed in seeds]
            for case, arguments, system in cases():
                config = config_of(preset, **arguments, small=small)
                own = [outcome(system, config, fleet, seed=seed) for seed in seeds]
                yield {"preset": preset, "fleet": name, "case": case, **gains(own, published)}


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The tables of the README: tokens per dollar by case and fleet, a table for each preset."""
    for preset in dict.fromkeys(row["preset"] for row in rows):
        own = [row for row in rows if row["preset"] == preset]
        fleets = list(dict.fromkeys(row["fleet"] for row in own))
        yield f"| {preset} | {' | '.join(_shown(fleet) for fleet in fleets)} |"
        yield "|:--" + "|--:" * len(fleets) + "|"
        for case in dict.fromkeys(row["case"] for row in own):
            found = {row["fleet"]: row["cost_efficiency"]["mean"] for row in own
                     if row["case"] == case}  # fmt: skip
            yield f"| {case} | {' | '.join(f'{found[fleet]:.2f}' for fleet in fleets)} |"


def _shown(fleet: str) -> str:
    return f"{fleet} instances" if fleet.isdecimal() else fleet


def _market(seed: int, small: bool) -> Market:
    """A synthetic market that no policy was tuned on."""
    config = sim_config(h100.get_config(PRESETS[0])).market
    hours = HOURS / 10 if small else HOURS
    config = replace(config, kind="hazard", hazard=HAZARD, segments=((0.0, hours),))
    (market,) = markets(config, seed=seed)
    return market


if __name__ == "__main__":
    for row in measure():
        print(json.dumps(row), flush=True)
