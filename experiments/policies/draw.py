"""Draw `results.json`: throughput against tokens per dollar, relative to the paper's policies.

python -m experiments.policies.draw
"""

import json
from pathlib import Path

import matplotlib.pyplot as plt

FOLDER = Path(__file__).parent
MARKS = {"paper": "o", "window": "s", "ours": "^", "bound": "*"}


def main() -> None:
    results = json.loads((FOLDER / "results.json").read_text())
    figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
    for color, (name, found) in enumerate(results.items()):
        for system, mark in MARKS.items():
            (x, half_x), (y, half_y) = (
                found["ratios"][f"{system}/tokens_per_{unit}"] for unit in ("second", "dollar")
            )
            axes.errorbar(
                x, y, yerr=half_y, xerr=half_x, marker=mark, color=f"C{color}", linestyle="",
                label=f"{system}: {name}" if system != "paper" else None,
            )  # fmt: skip
    axes.set_xlabel("tokens per second, relative to RLBoost as published")
    axes.set_ylabel("tokens per dollar, relative")
    axes.axhline(1.15, color="grey", linewidth=0.7, linestyle=":")
    axes.legend(fontsize=7)
    figure.savefig(FOLDER / "policies.png", dpi=120)


if __name__ == "__main__":
    main()
