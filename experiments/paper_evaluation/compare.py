"""Published numbers of RLBoost (NSDI '26, section 6) beside what was simulated.

The published ones are those of the paper's prose and of its artifact's guide; tables and plots
are images. Nothing here reaches a simulation.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Results = dict[str, Any]
Look = Callable[[Results], float]


def _static(
    model: str, instances: int, key: str = "throughput_ratio", *, system: str = "rlboost"
) -> Look:
    part = "static" if system == "rlboost" else system
    return lambda r: r[f"{part}_{model}"][system][str(instances)][key]


def _segments(kind: str, model: str, key: str) -> Look:
    return lambda r: r[f"{kind}_{model}"]["mean_over_markets"]["rlboost"][key]


def _best(fleets: dict[str, Any], key: str) -> float:
    return max(row[key] for row in fleets.values())


def _disaggregated(model: str) -> Look:
    """How much dearer a token is than with RLBoost on the trace's segments."""

    def look(r: Results) -> float:
        own = r[f"scarce_{model}"]["mean_over_markets"]["rlboost"]["cost_efficiency"]
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
    ("8B, 1 instance: throughput", 1.2, _static("8b", 1)),
    ("8B, 2 instances: throughput", 1.4, _static("8b", 2)),
    ("8B, 3 instances: throughput", 1.6, _static("8b", 3)),
    ("8B, 4 instances: throughput", 1.8, _static("8b", 4)),
    ("8B, co-located: tokens/s", 10_000,
     lambda r: r["static_8b"]["colocated"]["0"]["tokens_per_second"]),
    ("co-located rollout share of a step, at most", 0.73,
     lambda r: max(_share(m)(r) for m in ("8b", "14b", "32b"))),
    ("8B, segments: throughput", 1.66, _segments("segments", "8b", "throughput_ratio")),
    ("14B, segments: throughput", 1.97, _segments("segments", "14b", "throughput_ratio")),
    ("32B, segments: throughput", 1.51, _segments("segments", "32b", "throughput_ratio")),
    ("8B, segments: cost efficiency", 1.34, _segments("segments", "8b", "cost_efficiency")),
    ("14B, segments: cost efficiency", 1.49, _segments("segments", "14b", "cost_efficiency")),
    ("32B, segments: cost efficiency", 1.28, _segments("segments", "32b", "cost_efficiency")),
    ("8B, scarce segments: throughput", 1.66, _segments("scarce", "8b", "throughput_ratio")),
    ("14B, scarce segments: throughput", 1.97, _segments("scarce", "14b", "throughput_ratio")),
    ("32B, scarce segments: throughput", 1.51, _segments("scarce", "32b", "throughput_ratio")),
    ("8B, scarce segments: cost efficiency", 1.34, _segments("scarce", "8b", "cost_efficiency")),
    ("14B, scarce segments: cost efficiency", 1.49, _segments("scarce", "14b", "cost_efficiency")),
    ("32B, scarce segments: cost efficiency", 1.28, _segments("scarce", "32b", "cost_efficiency")),
    ("8B, disaggregated: cost per token", 1.62, _disaggregated("8b")),
    ("14B, disaggregated: cost per token", 1.75, _disaggregated("14b")),
    ("32B, disaggregated: cost per token", 1.45, _disaggregated("32b")),
    ("14B, at most 5k tokens, 3 instances: throughput", 1.47,
     lambda r: r["lengths"]["5k"]["rlboost"]["3"]["throughput_ratio"]),
    ("14B, at most 14k tokens, 6 instances: throughput", 2.22,
     lambda r: r["lengths"]["14k"]["rlboost"]["6"]["throughput_ratio"]),
    ("14B, at most 5k tokens, 3 instances: cost efficiency", 1.24,
     lambda r: r["lengths"]["5k"]["rlboost"]["3"]["cost_efficiency"]),
    ("14B, at most 14k tokens, 6 instances: cost efficiency", 1.61,
     lambda r: r["lengths"]["14k"]["rlboost"]["6"]["cost_efficiency"]),
    ("14B, losses: throughput without seeding", 0.81,
     lambda r: r["seeding"]["no_seeding"] / r["seeding"]["rlboost"]),
    ("14B, losses: throughput by the window's memory", 1.06,
     lambda r: r["seeding"]["rlboost"] / r["seeding"]["no_memory"]),
    ("14B, loss of 3 at 100 s: added time saved by migration", 0.33, _saved("100")),
    ("14B, loss of 3 at 200 s: added time saved by migration", 0.76, _saved("200")),
    ("14B, 6 instances: discount to break even", 0.30, _static("14b", 6, "break_even_discount")),
    ("8B, 2 instances, public code: throughput", 1.4, _static("8b", 2, system="public_code")),
    ("8B, 4 instances, public code: throughput", 1.8, _static("8b", 4, system="public_code")),
    ("14B, 1 instance, public code: throughput", 1.37, _static("14b", 1, system="public_code")),
    ("14B, 6 instances, public code: throughput", 2.25, _static("14b", 6, system="public_code")),
    ("14B, 6 instances over co-located on twice the nodes: throughput", 1.24,
     lambda r: r["static_14b"]["rlboost"]["6"]["throughput_ratio"]
     / r["static_14b"]["colocated_2x"]["0"]["throughput_ratio"]),
)  # fmt: skip


def compare(folder: Path) -> str:
    """Write `results.json`; returns the table in Markdown. What was not simulated is left out."""
    parts = {path.stem: json.loads(path.read_text()) for path in folder.glob("results/*.json")}
    lines = ["| | published | simulated | ratio |", "|:--|--:|--:|--:|"]
    rows = []
    for name, published, look in PUBLISHED:
        try:
            simulated = look(parts)
        except KeyError:
            continue
        ratio = simulated / published
        rows.append({"name": name, "published": published, "simulated": simulated, "ratio": ratio})
        digits = ",.0f" if published > 100 else ".2f"
        lines.append(f"| {name} | {published:{digits}} | {simulated:{digits}} | {ratio:.2f} |")
    (folder / "results.json").write_text(json.dumps(rows, indent=1) + "\n")
    return "\n".join(lines)
