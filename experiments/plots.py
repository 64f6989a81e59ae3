"""How figures look, and where an experiment's results lie."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

FOLDER = Path(__file__).parent
# Okabe and Ito's colours, which colour-blind people can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
STYLE = {
    "axes.grid": True,
    "axes.prop_cycle": mpl.cycler(color=COLOURS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.dpi": 110,
    "font.size": 9,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "svg.hashsalt": "rlboost",  # the same figure is the same file
}


class Drawing(Figure):
    """A figure that notebooks show as it is saved."""

    def _repr_svg_(self) -> str:
        with mpl.rc_context(STYLE), io.StringIO() as text:
            self.savefig(text, format="svg", metadata={"Date": None})
            return text.getvalue()


def panels(count: int, *, height: float = 2.9, width: float = 3.6) -> tuple[Drawing, list[Axes]]:
    """A figure of so many panels in a row, in inches."""
    with mpl.rc_context(STYLE):
        figure = Drawing(figsize=(width * count, height), layout="constrained")
        axes = figure.subplots(1, count, squeeze=False)[0]
    return figure, list(axes)


def line(
    axes: Axes, x: Sequence[float], cells: Sequence[Mapping[str, float]], **style: Any
) -> None:
    """Means with the 95 % intervals of `simulated.interval`."""
    half = [cell.get("half_width") or 0.0 for cell in cells]
    axes.errorbar(x, [cell["mean"] for cell in cells], yerr=half, capsize=2, **style)


def save(name: str, results: Any, figure: Drawing, *, folder: Path = FOLDER) -> None:
    """Write `results.json` and `figure.svg` of an experiment."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / name / "figure.svg").write_text(figure._repr_svg_())


class Svg(str):
    """A picture that notebooks show."""

    def _repr_svg_(self) -> str:
        return str(self)
