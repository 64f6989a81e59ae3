"""How well do models of half of a run's steps predict the other half? Results and figure.

    python -m experiments.calibration.evaluate tiny=runs/tiny loop=runs/loop/calm_2

Takes what `rlboost_jax.calibrate` wrote into each folder; writes `results.json`, `figure.svg`.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlboost_jax.simulator.calibration import FILE

FOLDER = Path(__file__).parent
WIDTH, HEIGHT, MARGIN = 420, 260, 48  # of one panel, in pixels


def collect(runs: Mapping[str, Path]) -> dict[str, Any]:
    """What was fitted to each run, and the check of it."""
    found = {}
    for name, folder in runs.items():
        told = json.loads((folder / FILE).read_text())
        found[name] = {key: told[key] for key in ("steps", "parameters", "check")}
    return found


def figure(results: Mapping[str, Any]) -> str:
    """A panel per run: measured times of the steps held out, the predicted mean and 10 % of it."""
    panels = [
        _panel(name, told["check"], WIDTH * place)
        for place, (name, told) in enumerate(results.items())
    ]
    size = f'width="{WIDTH * len(panels)}" height="{HEIGHT}"'
    style = 'font-family="sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>\n' + "".join(panels) + "</svg>\n"
    )


def _panel(name: str, check: Mapping[str, Any], left: float) -> str:
    steps = {int(step): seconds for step, seconds in check["steps"].items()}
    predicted, measured = check["predicted_seconds"], check["measured_seconds"]
    top = 1.15 * max(*steps.values(), 1.1 * predicted)
    first, last = min(steps), max(steps)
    wide, high = WIDTH - 1.5 * MARGIN, HEIGHT - 2 * MARGIN

    def x(step: float) -> float:
        return left + MARGIN + wide * (step - first) / max(1, last - first)

    def y(seconds: float) -> float:
        return MARGIN + high * (1 - seconds / top)

    def line(seconds: float, color: str, dash: str = "") -> str:
        ends = f'x1="{x(first):.1f}" x2="{x(last):.1f}" y1="{y(seconds):.1f}" y2="{y(seconds):.1f}"'
        return f'<line {ends} stroke="{color}" stroke-width="1.5" stroke-dasharray="{dash}"/>\n'

    band = f'y="{y(1.1 * predicted):.1f}" height="{y(0.9 * predicted) - y(1.1 * predicted):.1f}"'
    parts = [
        f'<text x="{left + MARGIN}" y="18" font-size="13">{name}: predicted / measured = '
        f"{check['ratio']:.2f}</text>\n",
        f'<text x="{left + MARGIN}" y="34" fill="#666">blue: predicted mean and 10 % around it; '
        "dots: steps; dashed: their mean</text>\n",
        f'<rect x="{x(first):.1f}" width="{wide}" {band} fill="#cfe2f3"/>\n',
        line(predicted, "#1f77b4"),
        line(measured, "#333", "5 4"),
        line(0.0, "#333"),
    ]
    for step, seconds in steps.items():
        parts.append(f'<circle cx="{x(step):.1f}" cy="{y(seconds):.1f}" r="3" fill="#d62728"/>\n')
    for tick in (0.0, top / 2, top):
        parts.append(f'<text x="{left + 8}" y="{y(tick) + 4:.1f}">{tick:.2g} s</text>\n')
    for step in (first, last):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - 30}">{step}</text>\n')
    parts.append(f'<text x="{left + WIDTH / 2 - 40}" y="{HEIGHT - 12}">step (held out)</text>\n')
    return "".join(parts)


def main() -> None:
    pairs = [argument.partition("=") for argument in sys.argv[1:]]
    results = collect({name: Path(folder) for name, _, folder in pairs})
    (FOLDER / "results.json").write_text(json.dumps(results, indent=1, allow_nan=False) + "\n")
    (FOLDER / "figure.svg").write_text(figure(results))
    for name, told in results.items():
        print(name, {k: v for k, v in told["check"].items() if k != "steps"})


if __name__ == "__main__":
    main()
