"""From the rows of simulated steps to what was asked: ratios, means, intervals."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlboost_jax.simulator.economics import break_even, dollars
from rlboost_jax.simulator.records import SimConfig
from rlboost_jax.simulator.systems import BASELINE

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


class Outcome:
    """One system on one market with one seed, settled steps only.

    Raises ValueError where there is none.
    """

    def __init__(self, config: SimConfig, rows: Sequence[Row], *, settling: int) -> None:
        self.config = config
        self.rows = rows[settling:]
        if not self.rows:
            raise ValueError(
                f"{len(rows)} whole steps, of which the first {settling} are left out "
                "(settling_steps); simulate for longer"
            )
        tokens = sum(row["response_tokens"] for row in self.rows)
        self.seconds = sum(row["step_seconds"] for row in self.rows)
        self.dollars = sum(dollars(config, row) for row in self.rows)
        self.tokens_per_second = tokens / self.seconds
        self.tokens_per_dollar = tokens / self.dollars if self.dollars else math.inf

    def means(self) -> dict[str, float]:
        """Of what the rows have, per step."""
        present = [key for key in MEANS if key in self.rows[0]]
        return {key: float(np.mean([row[key] for row in self.rows])) for key in present}

    def against(self, baseline: "Outcome") -> dict[str, float]:
        """Throughput and cost efficiency (tokens per dollar), relative."""
        nodes = baseline.config.reserved.nodes
        return {
            "throughput_ratio": self.tokens_per_second / baseline.tokens_per_second,
            "cost_efficiency": self.tokens_per_dollar / baseline.tokens_per_dollar,
            "break_even_discount": break_even(
                self.config, self.rows, baseline.rows, baseline_nodes=nodes
            ),
        }


def summary(
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]],
    instances: Mapping[str, int | None],
) -> dict[str, Any]:
    """
    Args:
        outcomes: (system, market) → an outcome per seed; the baseline's among them.
        instances: market → its size, if that is fixed.
    """
    results: list[dict[str, Any]] = []
    for (system, market), each in outcomes.items():
        pairs = zip(each, outcomes[BASELINE, market], strict=True)
        ratios = [outcome.against(baseline) for outcome, baseline in pairs]
        results.append(
            {
                "system": system,
                "market": market,
                "instances": instances[market],
                "tokens_per_second": _mean([o.tokens_per_second for o in each]),
                "tokens_per_dollar": _mean([o.tokens_per_dollar for o in each]),
                **{key: _mean([ratio[key] for ratio in ratios]) for key in ratios[0]},
                "throughput_ratio_half_width": _half_width([r["throughput_ratio"] for r in ratios]),
                "cost_efficiency_half_width": _half_width([r["cost_efficiency"] for r in ratios]),
                **{k: _mean([o.means()[k] for o in each]) for k in each[0].means()},
            }
        )
    static = [r for r in results if r["system"] == "rlboost" and r["instances"] is not None]
    by_instances = {
        f"{key}_by_instances": {str(r["instances"]): round(r[name], 4) for r in static}
        for key, name in (
            ("throughput_ratio", "throughput_ratio"),
            ("cost_efficiency", "cost_efficiency"),
        )
    }
    split = next((r for r in results if r["system"] == "colocated_static"), None)
    if split is not None:
        by_instances["throughput_ratio_over_static_by_instances"] = {
            str(r["instances"]): round(r["tokens_per_second"] / split["tokens_per_second"], 4)
            for r in static
        }
    means = {}
    for system in dict.fromkeys(r["system"] for r in results):
        own = [r for r in results if r["system"] == system]
        means[system] = {
            key: _mean([r[key] for r in own]) for key in ("throughput_ratio", "cost_efficiency")
        }
    return {**(by_instances if static else {}), "mean_over_markets": means, "results": results}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _half_width(values: Sequence[float]) -> float | None:
    """Of a 95 % interval of the mean over seeds, by the normal law; None of one seed."""
    if len(values) < 2:
        return None
    return float(1.96 * np.std(values, ddof=1) / math.sqrt(len(values)))
