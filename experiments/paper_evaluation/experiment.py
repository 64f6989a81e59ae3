"""The published evaluation beside the simulated one: what `evaluate` wrote, and a figure of it.

All of it takes an hour of a core; `evaluate` carries it out again, and its `--compare` this.
"""

from typing import Any

from experiments.paper_evaluation.compare import FOLDER, compared
from experiments.plots import COLOURS, Drawing, panels

TOLERANCE = 0.05


def measure(*, small: bool = False) -> list[dict[str, Any]]:
    """A row per published number, of the results that lie here, small or not."""
    return compared(FOLDER)


def figure(results: list[dict[str, Any]]) -> Drawing:
    """Simulated over published, with 95 % intervals over seeds."""
    drawn, (axes,) = panels(1, height=0.19 * len(results) + 0.8, width=7.2)
    places = range(len(results), 0, -1)
    for place, row in zip(places, results, strict=True):
        half = (row["half_width"] or 0.0) / row["published"]
        inside = abs(row["ratio"] - 1) <= TOLERANCE
        colour = COLOURS[2] if inside else COLOURS[1]
        axes.errorbar(row["ratio"], place, xerr=half, fmt="o", ms=4, capsize=2, color=colour)
    axes.axvspan(1 - TOLERANCE, 1 + TOLERANCE, color=COLOURS[2], alpha=0.15, lw=0, label="5 %")
    axes.axvline(1.0, color="grey", lw=0.8)
    axes.set_yticks(list(places), [row["name"] for row in results], fontsize=6.5)
    axes.set_ylim(0.3, len(results) + 0.7)
    axes.set_xlabel("simulated / published")
    axes.set_ylabel("published number")
    axes.legend(loc="lower right")
    return drawn
