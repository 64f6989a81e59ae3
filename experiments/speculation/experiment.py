"""What do drafts gain for a whole run, over RLBoost's policies without any?

python -m experiments.speculation.experiment > experiments/speculation/results.jsonl
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from configs.sim import h100
from experiments.simulated import TINY, gains, outcome
from experiments.speculation import texts
from rlboost_jax.simulator.market.simulated_market import Market, markets
from rlboost_jax.simulator.outcome import Outcome
from rlboost_jax.simulator.rates import EngineRates
from rlboost_jax.simulator.sim_config import HazardConfig, SimConfig
from rlboost_jax.simulator.sim_config_loading import sim_config
from rlboost_jax.simulator.systems import PUBLISHED

PRESETS: Final = ("qwen3_8b_openr1", "qwen3_14b_openr1")
ACCEPTANCES: Final = (0.3, 0.5, 0.65, 0.9)
USUAL: Final = 0.65  # of the cases that have no sweep
SWEPT: Final = 4  # instances of the fleets that meet all cases
EPOCH_STEPS: Final = 4  # as many as settle: what counts are the second epoch and later ones
KEPT_TOKENS: Final = (
    2**24
)  # `speculation.kept_tokens`, of which an epoch of these takes 6.2 million
HOURS: Final = 1.0
HAZARD: Final = HazardConfig(
    machines=4.0,
    lifetime_hours=0.5,
    batch_size=2.0,
    drought_hours=0.1,
    drought_gap_hours=0.5,
)
MARKET_SEEDS: Final = (101, 102)


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is compared with RLBoost as published, on the same fleet.

    Args:
        engine: settings of its engines.
        ordered: whether one response of each prompt goes first where there are drafts.
        texts: that there are before a batch begins, see `texts`; "": none.
        everywhere: on all fleets and markets.
        kept_tokens: where prompts come again after `EPOCH_STEPS`; None: they do not.
    """

    name: str
    acceptance: float | None = None  # None: there are no drafts
    engine: Mapping[str, Any] = field(default_factory=dict)
    ordered: bool = True
    system: str = "model_window"
    texts: str = ""
    everywhere: bool = False
    kept_tokens: int | None = None

    def config(self, preset: str, *, small: bool = False) -> SimConfig:
        values = h100.get_config(preset)
        values.num_steps, values.settling_steps = (2, 1) if small else (10, 4)
        if small:
            values.update_from_flattened_dict({**TINY, "engine.table": ()})
        if drafts := self.acceptance is not None:
            values.engine.most_drafts = h100.MOST_DRAFTS
            values.engine.draft_acceptance = self.acceptance
        values.engine.update(self.engine)
        values.policy.siblings_follow = drafts and self.ordered
        if self.kept_tokens is not None:
            steps = 1 if small else EPOCH_STEPS
            values.workload.epoch_prompts = steps * values.workload.prompts_per_step
            values.policy.kept_tokens = self.kept_tokens
            values.engine.earlier_tokens = h100.EARLIER_TOKENS if self.kept_tokens else 0
        return sim_config(values)

    def outcome(self, preset: str, fleet: int | Market, *, seed: int, small: bool) -> Outcome:
        config = self.config(preset, small=small)
        if self.texts:
            assert isinstance(fleet, int)
            return texts.outcome(self.texts, config, fleet, seed=seed)
        return outcome(self.system, config, fleet, seed=seed)


PUBLISHED_CASE: Final = Case(name="as published", system=PUBLISHED)
PUBLISHED_AGAIN: Final = replace(PUBLISHED_CASE, kept_tokens=0)  # the same prompts, epoch by epoch
LATER: Final = partial(Case, kept_tokens=KEPT_TOKENS)
CASES: Final = (
    *(Case(name=f"drafts {p}", acceptance=p, everywhere=p == USUAL) for p in ACCEPTANCES),
    Case(name=f"{USUAL}, half beyond siblings", acceptance=USUAL, engine={"draft_beyond": 0.5}),
    Case(name=f"{USUAL}, in order of prompts", acceptance=USUAL, ordered=False, everywhere=True),
    Case(name=f"{USUAL}, siblings together", acceptance=USUAL, texts=texts.TOGETHER),
    Case(name=f"{USUAL}, sized by price, tail merged", acceptance=USUAL, system="merged"),
    Case(name=f"{USUAL}, pre-drafts", acceptance=USUAL, texts=texts.OWN),
    Case(name=f"{USUAL}, pre-drafts that are followed", acceptance=USUAL, texts=texts.FOLLOWED),
    Case(name=f"{USUAL}, recent half", acceptance=USUAL, engine={"draft_recent": 0.5}),
    Case(name=f"{USUAL}, lag 1", acceptance=USUAL, system="lag_1"),
    *(LATER(name=f"later epochs, {p}", acceptance=p, everywhere=p == USUAL) for p in ACCEPTANCES),
    LATER(
        name=f"later epochs, {USUAL}, half from these",
        acceptance=USUAL,
        engine={"draft_earlier": 0.5},
        everywhere=True,
    ),
    LATER(name=f"later epochs, {USUAL}, sized by price", acceptance=USUAL, system="merged"),
    LATER(
        name=f"later epochs, {USUAL}, recent half", acceptance=USUAL, engine={"draft_recent": 0.5}
    ),
    replace(
        LATER(name=f"later epochs, {USUAL}, a third kept", acceptance=USUAL),
        kept_tokens=KEPT_TOKENS // 8,
    ),
)


def by_table(preset: str, acceptance: float, *, busy: float = 1.0) -> float:
    """Tokens per second with drafts over those without, by the H100's table, of one engine.

    Args:
        busy: share of its slots with a rollout in them, all of which have drafts.
    """
    config = Case(name="", acceptance=acceptance).config(preset)
    engine, rates = config.engine, EngineRates(config)
    batch = round(busy * engine.slots)
    context = batch * 5800.0  # of the table's row
    width = min(engine.most_drafts, (engine.token_rows - batch) // batch)
    seconds = [rates.step_seconds(batch, context, drafts=width * each) for each in (0, batch)]
    return rates.tokens_a_step(width) * seconds[0] / seconds[1]


def measure(
    *,
    presets: Sequence[str] = PRESETS,
    instances: Sequence[int] = (SWEPT,),
    market_seeds: Sequence[int] = MARKET_SEEDS,
    seeds: Sequence[int] = (0,),
    swept: int = SWEPT,
    small: bool = False,
) -> Iterator[dict[str, Any]]:
    """A row for each preset, fleet or market, and case: gains over RLBoost as published."""
    for preset in presets:
        fleets: list[tuple[str, int | Market]] = [(f"{count}", count) for count in instances]
        if preset == PRESETS[0]:  # an hour has few steps of the other
            fleets += [(f"market {seed}", _market(seed, small)) for seed in market_seeds]
        for name, fleet in fleets:
            of = partial(_outcomes, preset, fleet, seeds, small)
            published = {None: of(PUBLISHED_CASE), 0: of(PUBLISHED_AGAIN)}
            for case in CASES:
                if case.everywhere or fleet == swept:
                    again = None if case.kept_tokens is None else 0
                    found = gains(of(case), published[again])
                    yield {"preset": preset, "fleet": name, "case": case.name, **found}


def _outcomes(
    preset: str, fleet: int | Market, seeds: Sequence[int], small: bool, case: Case
) -> list[Outcome]:
    return [case.outcome(preset, fleet, seed=seed, small=small) for seed in seeds]


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
            shown = (f"{found[fleet]:.2f}" if fleet in found else "" for fleet in fleets)
            yield f"| {case} | {' | '.join(shown)} |"


def lines_by_table() -> Iterator[str]:
    """The README's table of what drafts bring to one engine, by acceptance and share of slots."""
    shares = (1.0, 0.75, 0.5)
    heads = [f"{preset.split('_')[1]}, {share:.0%} busy" for preset in PRESETS for share in shares]
    yield f"| acceptance | {' | '.join(heads)} |"
    yield "|--:" + "|--:" * len(heads) + "|"
    for acceptance in (0.0, 0.1, 0.3, 0.5, 0.55, 0.65, 0.8, 0.9):
        found = (by_table(preset, acceptance, busy=b) for preset in PRESETS for b in shares)
        yield f"| {acceptance} | {' | '.join(f'{ratio:.2f}' for ratio in found)} |"


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
