"""Published numbers of RLBoost (NSDI '26, section 6) beside what was simulated.

The published ones are those of the paper's prose and of its artifact's guide; tables and plots
are images. Nothing here reaches a simulation. What was simulated lies in `results/`, a file per
part of `evaluate.py`, and with the experiments beside this one. Means over seeds, with 95 %
intervals.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.simulated import interval
from rlboost_jax.simulator.intervals import Number

FOLDER = Path(__file__).parent
OTHERS = ("static_fleet", "response_length", "seeding_window", "migration", "spot_discount")
ENGINES = {"8b": 4, "14b": 4, "32b": 8}  # of the reserved nodes
Results = dict[str, Any]  # part → seed → what it found; other experiment → its results
Cell = Mapping[str, Number]  # mean and half_width
Look = Callable[[Results], Cell]


def _static(model: str, instances: int, key: str = "throughput_ratio") -> Look:
    return lambda r: r["static_fleet"][model][str(instances)][key]


def _lengths(tokens: int, instances: int, key: str = "throughput_ratio") -> Look:
    return lambda r: r["response_length"][str(tokens)][str(instances)][key]


def _over_none(instances: int) -> Look:
    """Throughput over that of the same manager without instances; of means, so no interval."""

    def look(r: Results) -> Cell:
        own, none = (_static("14b", count)(r)["mean"] for count in (instances, 0))
        assert own and none
        return {"mean": own / none, "half_width": None}

    return look


def _by_seed(look: Callable[[Mapping[str, Any]], float], *parts: str) -> Look:
    """Over the seeds of some parts; `look` gets what each of them found, by its name."""

    def found(r: Results) -> Cell:
        seeds = [seed for seed in r[parts[0]] if all(seed in r[part] for part in parts)]
        return interval([look({part: r[part][seed] for part in parts}) for seed in seeds])

    return found


def _segments(model: str, key: str) -> Look:
    part = f"segments_{model}"
    return _by_seed(lambda r: r[part]["means"][key], part)


def _break_even(r: Mapping[str, Any]) -> float:
    """The discount from which on instances pay on the segments, by the dearest model's: prices
    are of whole nodes, and an instance is as many chips as one of their engines."""

    def discount(model: str, engines: int) -> float:
        means = r[f"segments_{model}"]["means"]
        return 1 - (means["throughput_ratio"] - 1) * engines / float(means["instances_paid"])

    return max(discount(model, engines) for model, engines in ENGINES.items())


def _disaggregated(model: str) -> Look:
    """How much dearer a token is, at the cheapest size, than with RLBoost on the segments."""
    own, other = f"segments_{model}", f"disaggregated_{model}"

    def look(r: Mapping[str, Any]) -> float:
        best = max(row["cost_efficiency"] for row in r[other].values())
        return float(r[own]["means"]["cost_efficiency"] / best)

    return _by_seed(look, own, other)


def _colocated(look: Callable[[Mapping[str, Any]], float]) -> Look:
    return _by_seed(lambda r: look(r["colocated"]), "colocated")


def _public_code(model: str, instances: int) -> Look:
    part = f"public_code_{model}"
    return _by_seed(lambda r: r[part][str(instances)]["throughput_ratio"], part)


def _over_twice(r: Results) -> Cell:
    """14B with six instances over twice the nodes; of means, so no interval."""
    twice = _colocated(lambda found: found["14b"]["twice"])(r)["mean"]
    own = _static("14b", 6)(r)["mean"]
    assert own and twice
    return {"mean": own / twice, "half_width": None}


def _by_memory(r: Results) -> Cell:
    """How much more the window does with its memory than without."""
    cell = r["seeding_window"]["ratio"]["no_memory"]
    half = cell["half_width"] and cell["half_width"] / cell["mean"] ** 2
    return {"mean": 1 / cell["mean"], "half_width": half}


PUBLISHED: tuple[tuple[str, float, Look], ...] = (
    ("14B, 1 instance: throughput", 1.37, _static("14b", 1)),
    ("14B, 6 instances: throughput", 2.25, _static("14b", 6)),
    ("14B, 1 instance: cost efficiency", 1 / 0.78, _static("14b", 1, "cost_efficiency")),
    ("14B, 6 instances: cost efficiency", 1 / 0.615, _static("14b", 6, "cost_efficiency")),
    ("14B, 1 instance over none: throughput", 1.37, _over_none(1)),
    ("14B, 6 instances over none: throughput", 2.25, _over_none(6)),
    ("14B, at most 5k tokens, 3 instances: throughput", 1.47, _lengths(5120, 3)),
    ("14B, at most 14k tokens, 6 instances: throughput", 2.22, _lengths(14_336, 6)),
    ("14B, at most 5k tokens, 3 instances: cost efficiency", 1.24,
     _lengths(5120, 3, "cost_efficiency")),
    ("14B, at most 14k tokens, 6 instances: cost efficiency", 1.61,
     _lengths(14_336, 6, "cost_efficiency")),
    ("8B, segments: throughput", 1.66, _segments("8b", "throughput_ratio")),
    ("14B, segments: throughput", 1.97, _segments("14b", "throughput_ratio")),
    ("32B, segments: throughput", 1.51, _segments("32b", "throughput_ratio")),
    ("8B, segments: cost efficiency", 1.34, _segments("8b", "cost_efficiency")),
    ("14B, segments: cost efficiency", 1.49, _segments("14b", "cost_efficiency")),
    ("32B, segments: cost efficiency", 1.28, _segments("32b", "cost_efficiency")),
    ("14B, 6 instances: discount to break even", 0.30,
     lambda r: {"mean": r["spot_discount"]["instances"]["6"]["break_even"], "half_width": None}),
    ("segments: discount from which all three models break even", 0.30,
     _by_seed(_break_even, *(f"segments_{model}" for model in ENGINES))),
    ("14B, losses: throughput without seeding", 0.81,
     lambda r: r["seeding_window"]["ratio"]["no_seeding"]),
    ("14B, losses: throughput by the window's memory", 1.06, _by_memory),
    ("8B, 1 instance: throughput", 1.2, _static("8b", 1)),
    ("8B, 2 instances: throughput", 1.4, _static("8b", 2)),
    ("8B, 3 instances: throughput", 1.6, _static("8b", 3)),
    ("8B, 4 instances: throughput", 1.8, _static("8b", 4)),
    ("8B, co-located: tokens/s", 10_000,
     _colocated(lambda found: found["8b"]["tokens_per_second"])),
    ("co-located rollout share of a step, at most", 0.73,
     _colocated(lambda found: max(row["rollout_share"] for row in found.values()))),
    ("8B, disaggregated: cost per token", 1.62, _disaggregated("8b")),
    ("14B, disaggregated: cost per token", 1.75, _disaggregated("14b")),
    ("32B, disaggregated: cost per token", 1.45, _disaggregated("32b")),
    ("14B, loss of 3 at 100 s: added time saved by migration", 0.33,
     lambda r: r["migration"]["100"]["saved"]),
    ("14B, loss of 3 at 200 s: added time saved by migration", 0.76,
     lambda r: r["migration"]["200"]["saved"]),
    ("8B, 2 instances, public code: throughput", 1.4, _public_code("8b", 2)),
    ("8B, 4 instances, public code: throughput", 1.8, _public_code("8b", 4)),
    ("14B, 1 instance, public code: throughput", 1.37, _public_code("14b", 1)),
    ("14B, 6 instances, public code: throughput", 2.25, _public_code("14b", 6)),
    ("14B, 6 instances over co-located on twice the nodes: throughput", 1.24, _over_twice),
)  # fmt: skip


def compared(folder: Path) -> list[dict[str, Any]]:
    """A row per published number.

    Args:
        folder: of this experiment, beside the others. What was not simulated is left out.
    """
    files = {path.stem: path for path in folder.glob("results/*.json")}
    files |= {name: folder.parent / name / "results.json" for name in OTHERS}
    parts = {name: json.loads(path.read_text()) for name, path in files.items() if path.exists()}
    rows = []
    for name, published, look in PUBLISHED:
        try:
            cell = look(parts)
        except KeyError:
            continue
        assert cell["mean"] is not None, name
        ratio = cell["mean"] / published
        rows.append(
            {
                "name": name,
                "published": published,
                "simulated": cell["mean"],
                "half_width": cell["half_width"],
                "ratio": ratio,
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
