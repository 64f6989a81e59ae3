"""Reduce the rows of simulated steps to results: ratios, means, intervals."""

from collections.abc import Mapping, Sequence
from typing import Any

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.simulator.economics import break_even, dollars
from rlboost_jax.simulator.intervals import Number, mean, with_interval
from rlboost_jax.simulator.sim_config import SimConfig
from rlboost_jax.simulator.systems import BASELINE, PUBLISHED

Row = Mapping[str, Any]
MEANS = (
    "step_seconds",
    "rollout_seconds",
    "train_seconds",
    "train_wait_seconds",
    "remote_wait_seconds",
    "seeding_window_seconds",
    "instances_mean",
    "instances_joined",
    "instances_lost",
    "requests_migrated",
    "tokens_lost",
    "tokens_prefilled_again",
)
RATIOS = ("throughput_ratio", "cost_efficiency")


class Outcome:
    """Results of one system on one market with one seed, settled steps only.

    Args:
        rows: None of a system that generates nothing and never ends a step: it yields no tokens.

    Raises ConfigError where no step is left.
    """

    def __init__(self, config: SimConfig, rows: Sequence[Row] | None, *, settling: int) -> None:
        self.config = config
        self.rows: Sequence[Row] = () if rows is None else rows[settling:]
        if rows is None:
            self.seconds = self.dollars = self.tokens_per_second = self.tokens_per_dollar = 0.0
            return
        if not self.rows:
            raise ConfigError(
                f"settling_steps is {settling} and {len(rows)} whole steps fit the market; lower "
                "it, or simulate for longer"
            )
        tokens = sum(row["response_tokens"] for row in self.rows)
        self.seconds = sum(row["step_seconds"] for row in self.rows)
        self.dollars = sum(dollars(config, row) for row in self.rows)
        self.tokens_per_second = tokens / self.seconds
        self.tokens_per_dollar = tokens / self.dollars

    def means(self) -> dict[str, Number]:
        """Means of the rows' figures per step."""
        present = [key for key in MEANS if self.rows and key in self.rows[0]]
        return {key: mean([row[key] for row in self.rows]) for key in present}

    def against(self, baseline: "Outcome") -> dict[str, Number]:
        """Compare with a baseline: throughput, cost efficiency, break-even discount.

        Both ratios are relative to the baseline, and cost efficiency is tokens per dollar. The
        discount on instances is the least at which this system is the cheaper one, None where none
        is enough.
        """
        nodes = baseline.config.reserved.nodes
        discount = None
        if self.rows:
            discount = break_even(self.config, self.rows, baseline.rows, baseline_nodes=nodes)
        return {
            "throughput_ratio": self.tokens_per_second / baseline.tokens_per_second,
            "cost_efficiency": self.tokens_per_dollar / baseline.tokens_per_dollar,
            "break_even_discount": discount,
        }


Outcomes = Mapping[tuple[str, str], Sequence[Outcome]]  # (system, market) → one per seed


def summary(outcomes: Outcomes, instances: Mapping[str, int | None]) -> dict[str, Any]:
    """Summarise all outcomes by system and market.

    Args:
        outcomes: the baseline's among them.
        instances: market → its size, if that is fixed.
    """
    results: list[dict[str, Any]] = [
        {
            "system": system,
            "market": market,
            "instances": instances[market],
            **_figures(outcomes, system, market),
        }
        for system, market in outcomes
    ]
    systems = dict.fromkeys(system for system, _ in outcomes)
    means = {system: _over_markets(outcomes, system) for system in systems}
    return {**_by_instances(results), "mean_over_markets": means, "results": results}


def _figures(outcomes: Outcomes, system: str, market: str) -> dict[str, Number]:
    """Average a system's figures over seeds.

    Ratios are taken seed by seed: both sides have the same lengths and the same market, so their
    effect on both cancels and does not widen the interval.
    """
    each = outcomes[system, market]
    ratios = _ratios(outcomes, system, market, BASELINE)
    figures = {
        **with_interval("tokens_per_second", [o.tokens_per_second for o in each]),
        **with_interval("tokens_per_dollar", [o.tokens_per_dollar for o in each]),
    }
    for name in ratios[0]:
        figures |= with_interval(name, [ratio[name] for ratio in ratios])
    if (PUBLISHED, market) in outcomes:
        over = _ratios(outcomes, system, market, PUBLISHED)
        for name in RATIOS:
            figures |= with_interval(f"{name}_over_{PUBLISHED}", [ratio[name] for ratio in over])
    means = [outcome.means() for outcome in each]
    return figures | {key: mean([row[key] for row in means]) for key in means[0]}


def _ratios(outcomes: Outcomes, system: str, market: str, other: str) -> list[dict[str, Number]]:
    """Compare a system with another in the same market, per seed."""
    pairs = zip(outcomes[system, market], outcomes[other, market], strict=True)
    return [outcome.against(baseline) for outcome, baseline in pairs]


def _over_markets(outcomes: Outcomes, system: str) -> dict[str, Number]:
    """Average over markets, with an interval over seeds."""
    markets = [market for own, market in outcomes if own == system]
    each = [_ratios(outcomes, system, market, BASELINE) for market in markets]
    by_seed = list(zip(*each, strict=True))
    found: dict[str, Number] = {}
    for name in RATIOS:
        found |= with_interval(name, [mean([r[name] for r in ratios]) for ratios in by_seed])
    return found


def _by_instances(results: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Gains of fixed fleets under the published policies, by their size."""
    static = [r for r in results if r["system"] == PUBLISHED and r["instances"] is not None]
    if not static:
        return {}
    found = {
        f"{name}_by_instances": {str(r["instances"]): round(r[name], 4) for r in static}
        for name in RATIOS
    }
    split = next((r for r in results if r["system"] == "colocated_static"), None)
    if split is not None:
        found["throughput_ratio_over_static_by_instances"] = {
            str(r["instances"]): round(r["tokens_per_second"] / split["tokens_per_second"], 4)
            for r in static
        }
    return found
