"""How well do models of half of a run's steps predict the other half? Results and figure.

    python -m experiments.calibration.experiment tiny=runs/tiny loop=runs/loop/calm_2

Takes what `rlboost calibrate` wrote into each folder; writes `results.json`, `figure.svg`.
Runs take minutes and a quiet machine, so the notebook shows those whose results lie here.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.plots import COLOURS, Drawing, panels, save
from rlboost_jax.simulator.calibration.fits import resampled, weighted
from rlboost_jax.simulator.calibration.run_calibration import FILE

FOLDER = Path(__file__).parent
LAW = {"per_step": 0.004, "per_token": 5e-4, "per_context_token": 2e-7}  # seconds


def collect(runs: Mapping[str, Path]) -> dict[str, Any]:
    """What was fitted to each run, and the check of it."""
    found = {}
    for name, folder in runs.items():
        report = json.loads((folder / FILE).read_text())
        found[name] = {key: report[key] for key in ("steps", "parameters", "check")}
    return found


def measure(*, small: bool = False) -> dict[str, Any]:
    """What was collected last, small or not."""
    found: dict[str, Any] = json.loads((FOLDER / "results.json").read_text())
    return found


def known_law(*, steps: int = 40, noise: float = 0.05, seed: int = 0) -> dict[str, Any]:
    """The fit on times that are made up by a law: coefficient → its value, and what was found.

    Args:
        steps: of a run, each of ten dispatches at random batches and contexts.
        noise: relative, of a dispatch's time.
    """
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(steps):
        batch = random.integers(1, 33, size=10)
        context = batch * random.integers(100, 1200, size=10)
        columns = np.stack([np.ones(10), batch, context], axis=1).astype(float)
        seconds = columns @ [*LAW.values()] * (1 + noise * random.standard_normal(10))
        rows.append((columns, seconds))

    def fit(drawn: Any) -> dict[str, float]:
        columns, seconds = (np.concatenate(part) for part in zip(*drawn, strict=True))
        return dict(zip(LAW, weighted(columns, seconds).tolist(), strict=True))

    found, half = fit(rows), resampled(fit, rows)
    return {
        name: {"true": true, "found": found[name], "half_width": half[name]}
        for name, true in LAW.items()
    }


def figure(results: Mapping[str, Any]) -> Drawing:
    """A panel per run: measured times of the steps held out, the predicted mean and 10 % of it."""
    drawn, axes = panels(len(results))
    for panel, (name, report) in zip(axes, results.items(), strict=True):
        check = report["check"]
        predicted, measured = check["predicted_seconds"], check["measured_seconds"]
        steps = {int(step): seconds for step, seconds in check["steps"].items()}
        panel.plot([*steps], [*steps.values()], "o", ms=3, color=COLOURS[1], label="steps held out")
        panel.axhline(measured, color="grey", lw=1, ls="--", label="their mean")
        panel.axhline(predicted, color=COLOURS[0], lw=1, label="predicted mean, and 10 % of it")
        panel.axhspan(0.9 * predicted, 1.1 * predicted, color=COLOURS[0], alpha=0.15, lw=0)
        panel.set_title(f"{name}: predicted / measured {check['ratio']:.2f}", fontsize=9)
        panel.set_xlabel("step")
        panel.set_ylabel("seconds")
        panel.set_ylim(bottom=0)
    axes[0].legend(fontsize=7)
    return drawn


def main() -> None:
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    results = collect({name: Path(folder) for name, _, folder in pairs})
    save("calibration", results, figure(results))
    for name, report in results.items():
        print(name, {k: v for k, v in report["check"].items() if k != "steps"})


if __name__ == "__main__":
    main()
