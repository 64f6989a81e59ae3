"""Published numbers of RLBoost (NSDI '26, section 6) beside what was simulated.

The published ones are those of the paper's prose and of its artifact's guide; tables and plots
are images. Nothing here reaches a simulation. Means over seeds, with 95 % intervals.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.simulator.intervals import half_width, mean

FOLDER = Path(__file__).parent
Results = dict[str, Any]  # part → what one seed found
Look = Callable[[Results], float]


def _static(
    model: str, instances: int, key: str = "throughput_ratio", *, system: str = "rlboost"
) -> Look:
    part = "static" if system == "rlboost" else system
    return lambda r: r[f"{part}_{model}"][system][str(instances)][key]


def _over(instances: int, system: str, other: int) -> Look:
    """Throughput of 14B with RLBoost's policies over that of another system or fleet."""

    def look(r: Results) -> float:
        found = r["static_14b"]
        own, theirs = found["rlboost"][str(instances)], found[system][str(other)]
        return own["throughput_ratio"] / theirs["throughput_ratio"]

    return look


def _segments(model: str, key: str) -> Look:
    return lambda r: r[f"segments_{model}"]["means"][key]


def _all_models(key: str) -> Look:
    return lambda r: max(_segments(model, key)(r) for model in ("8b", "14b", "32b"))


def _best(fleets: dict[str, Any], key: str) -> float:
    return max(row[key] for row in fleets.values())


def _disaggregated(model: str) -> Look:
    """How much dearer a token is than with RLBoost on the trace's segments."""

    def look(r: Results) -> float:
        own = r[f"segments_{model}"]["means"]["cost_efficiency"]
        return own / _best(r[f"disaggregated_{model}"]["disaggregated"], "cost_efficiency")

    return look


def _saved(seconds: str) -> Look:
    """Share of the added step time that migration saves."""
    return lambda r: 1 - r["faults"][seconds]["migrate"] / r["faults"][seconds]["recompute"]


def _share(model: str) -> Look:
    def look(r: Results) -> float:
        row = r[f"static_{model}"]["colocated"]["0"]
        return row["rollout_seconds"] / row["step_seconds"]

    return look


PUBLISHED: tuple[tuple[str, float, Look], ...] = (
    ("14B, 1 instance: throughput", 1.37, _static("14b", 1)),
    ("14B, 6 instances: throughput", 2.25, _static("14b", 6)),
    ("14B, 1 instance: cost efficiency", 1 / 0.78, _static("14b", 1, "cost_efficiency")),
    ("14B, 6 instances: cost efficiency", 1 / 0.615, _static("14b", 6, "cost_efficiency")),
    ("14B, 1 instance over none: throughput", 1.37, _over(1, "rlboost", 0)),
    ("14B, 6 instances over none: throughput", 2.25, _over(6, "rlboost", 0)),
    ("14B, at most 5k tokens, 3 instances: throughput", 1.47,
     lambda r: r["lengths"]["5k"]["rlboost"]["3"]["throughput_ratio"]),
    ("14B, at most 14k tokens, 6 instances: throughput", 2.22,
     lambda r: r["lengths"]["14k"]["rlboost"]["6"]["throughput_ratio"]),
    ("14B, at most 5k tokens, 3 instances: cost efficiency", 1.24,
     lambda r: r["lengths"]["5k"]["rlboost"]["3"]["cost_efficiency"]),
    ("14B, at most 14k tokens, 6 instances: cost efficiency", 1.61,
     lambda r: r["lengths"]["14k"]["rlboost"]["6"]["cost_efficiency"]),
    ("8B, segments: throughput", 1.66, _segments("8b", "throughput_ratio")),
    ("14B, segments: throughput", 1.97, _segments("14b", "throughput_ratio")),
    ("32B, segments: throughput", 1.51, _segments("32b", "throughput_ratio")),
    ("8B, segments: cost efficiency", 1.34, _segments("8b", "cost_efficiency")),
    ("14B, segments: cost efficiency", 1.49, _segments("14b", "cost_efficiency")),
    ("32B, segments: cost efficiency", 1.28, _segments("32b", "cost_efficiency")),
    ("segments: discount from which all three models break even", 0.30,
     _all_models("break_even_discount")),
    ("14B, losses: throughput without seeding", 0.81,
     lambda r: r["seeding"]["no_seeding"] / r["seeding"]["rlboost"]),
    ("14B, losses: throughput by the window's memory", 1.06,
     lambda r: r["seeding"]["rlboost"] / r["seeding"]["no_memory"]),
    ("8B, 1 instance: throughput", 1.2, _static("8b", 1)),
    ("8B, 2 instances: throughput", 1.4, _static("8b", 2)),
    ("8B, 3 instances: throughput", 1.6, _static("8b", 3)),
    ("8B, 4 instances: throughput", 1.8, _static("8b", 4)),
    ("8B, co-located: tokens/s", 10_000,
     lambda r: r["static_8b"]["colocated"]["0"]["tokens_per_second"]),
    ("co-located rollout share of a step, at most", 0.73,
     lambda r: max(_share(m)(r) for m in ("8b", "14b", "32b"))),
    ("8B, disaggregated: cost per token", 1.62, _disaggregated("8b")),
    ("14B, disaggregated: cost per token", 1.75, _disaggregated("14b")),
    ("32B, disaggregated: cost per token", 1.45, _disaggregated("32b")),
    ("14B, loss of 3 at 100 s: added time saved by migration", 0.33, _saved("100")),
    ("14B, loss of 3 at 200 s: added time saved by migration", 0.76, _saved("200")),
    ("8B, 2 instances, public code: throughput", 1.4, _static("8b", 2, system="public_code")),
    ("8B, 4 instances, public code: throughput", 1.8, _static("8b", 4, system="public_code")),
    ("14B, 1 instance, public code: throughput", 1.37, _static("14b", 1, system="public_code")),
    ("14B, 6 instances, public code: throughput", 2.25, _static("14b", 6, system="public_code")),
    ("14B, 6 instances over co-located on twice the nodes: throughput", 1.24,
     _over(6, "colocated_2x", 0)),
)  # fmt: skip


def compared(folder: Path) -> list[dict[str, Any]]:
    """A row per published number. What was not simulated is left out."""
    parts = {path.stem: json.loads(path.read_text()) for path in folder.glob("results/*.json")}
    rows = []
    for name, published, look in PUBLISHED:
        values = _by_seed(parts, look)
        simulated = mean(values)
        if simulated is not None:
            rows.append(
                {
                    "name": name,
                    "published": published,
                    "simulated": simulated,
                    "half_width": half_width(values),
                    "ratio": simulated / published,
                }
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """In Markdown."""
    lines = ["| | published | simulated | ± | ratio |", "|:--|--:|--:|--:|--:|"]
    for row in rows:
        form = ",.0f" if row["published"] > 100 else ".2f"
        half = row["half_width"]
        values = [f"{row['published']:{form}}", f"{row['simulated']:{form}}"]
        values += ["" if half is None else f"{half:{form}}", f"{row['ratio']:.2f}"]
        lines.append(f"| {row['name']} | {' | '.join(values)} |")
    return "\n".join(lines)


def _by_seed(parts: Results, look: Look) -> list[float]:
    """What is looked up, of every seed that has the parts it takes."""
    seeds = sorted({seed for found in parts.values() for seed in found}, key=int)
    values = []
    for seed in seeds:
        try:
            values.append(look({n: found[seed] for n, found in parts.items() if seed in found}))
        except KeyError:
            continue
    return values
