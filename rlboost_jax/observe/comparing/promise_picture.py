"""The first figure of a comparison: reward curves over each other, and below them a strip for each
run, with a cell for each step and a cross where servers were lost.

A cell is filled where the weights after the step are those of the first run, and empty where they
differ. It is an SVG by itself: no script, no font, nothing from elsewhere.
"""

import html
from collections.abc import Iterator, Sequence
from typing import Final

from rlboost_jax.observe.comparing.compared_run import ComparedRun
from rlboost_jax.observe.comparing.divergence import sentence
from rlboost_jax.observe.comparing.side_by_side import SHOWN_DIGITS, all_steps, marks
from rlboost_jax.observe.page.panel_records import AMBER, BLUE, QUIET, RED, TEAL, VIOLET

COLOURS: Final = (BLUE, AMBER, TEAL, VIOLET, RED)  # of runs, in turn
WIDTH: Final = 900
LEFT, RIGHT, TOP = 120, 150, 34
CURVE: Final = 170  # height of the plot of rewards
STRIP: Final = 26  # height of a cell
GAP: Final = 30  # between strips
CROSS: Final = 4.0  # half its width


def picture(runs: Sequence[ComparedRun]) -> str:
    """The figure as an SVG."""
    height = TOP + CURVE + len(runs) * (STRIP + GAP) + 40
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html.escape(sentence(runs[0], runs[1:]))}" font-family="system-ui, '
        'sans-serif" font-size="13" fill="#1c2330">'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
        + "".join(_parts(runs))
        + "</svg>\n"
    )


def colour_of(place: int) -> str:
    """Colour of a run, by its place among the compared ones."""
    return COLOURS[place % len(COLOURS)]


def _parts(runs: Sequence[ComparedRun]) -> Iterator[str]:
    steps = all_steps(runs)
    first, last = (steps[0], steps[-1]) if steps else (0, 0)
    cell = (WIDTH - LEFT - RIGHT) / (last - first + 1)
    yield from _curves(runs, first, cell)
    for place, run in enumerate(runs):
        top = TOP + CURVE + GAP + place * (STRIP + GAP)
        yield from _strip(runs, run, place, top=top, first=first, cell=cell)
    bottom = TOP + CURVE + len(runs) * (STRIP + GAP) + 30
    yield (
        f'<text x="{LEFT}" y="{bottom}" fill="{QUIET}">A cell is a step: filled where the weights '
        f"after it have the digest of {_text(runs[0].name, 20)}'s; a cross: servers were lost in it"
        "</text>"
    )


def _curves(runs: Sequence[ComparedRun], first: int, cell: float) -> Iterator[str]:
    rewards = [
        row["reward_mean"]
        for run in runs
        for row in run.steps.values()
        if row["reward_mean"] is not None
    ]
    low, high = min([0.0, *rewards]), max([1.0, *rewards])
    yield f'<text x="{LEFT - 10}" y="{TOP + 8}" text-anchor="end">reward {high:.3g}</text>'
    yield f'<text x="{LEFT - 10}" y="{TOP + CURVE}" text-anchor="end">{low:.3g}</text>'
    for y in (TOP, TOP + CURVE):
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#e1e5ec"/>'
    for place, run in enumerate(runs):
        points = [
            (
                LEFT + (step - first + 0.5) * cell,
                TOP + CURVE - CURVE * (row["reward_mean"] - low) / (high - low),
            )
            for step, row in run.steps.items()
            if row["reward_mean"] is not None
        ]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        # The first is wide and pale: what lies upon it exactly can be seen on it.
        look = (
            'stroke-width="6" stroke-opacity="0.35"'
            if place == 0
            else f'stroke-width="1.8" stroke-dasharray="{4 + 2 * place} 3"'
        )
        if path:
            yield f'<path d="M{path}" fill="none" stroke="{colour_of(place)}" {look}/>'


def _strip(
    runs: Sequence[ComparedRun],
    run: ComparedRun,
    place: int,
    *,
    top: float,
    first: int,
    cell: float,
) -> Iterator[str]:
    colour, middle = colour_of(place), top + STRIP / 2
    name = _text(run.name, 14)
    yield f'<text x="{LEFT - 10}" y="{middle + 4}" text-anchor="end">{name}</text>'
    for step, row in run.steps.items():
        x, width = LEFT + (step - first) * cell, max(0.5, cell - min(1.5, cell / 4))
        equal = marks(runs, step)[place]
        fill = {True: colour, False: "white", None: "#e3e7ed"}[equal]
        edge = RED if equal is False else fill
        yield (
            f'<rect x="{x:.2f}" y="{top}" width="{width:.2f}" height="{STRIP}" fill="{fill}" '
            f'fill-opacity="0.55" stroke="{edge}"/>'
        )
        if row["instances_lost"]:
            yield _cross(x + width / 2, middle)
    lost = run.summary.instances_lost
    end = WIDTH - RIGHT + 10
    digits = run.summary.params_digest[:SHOWN_DIGITS]
    yield (
        f'<text x="{end}" y="{middle - 2}" font-family="ui-monospace, monospace">{digits}</text>'
        f'<text x="{end}" y="{middle + 14}" fill="{QUIET}">{lost} server{"s" * (lost != 1)} lost'
        "</text>"
    )


def _cross(x: float, y: float) -> str:
    left, right, top, bottom = x - CROSS, x + CROSS, y - CROSS, y + CROSS
    path = (
        f"M{left:.1f} {top:.1f}L{right:.1f} {bottom:.1f}M{left:.1f} {bottom:.1f}"
        f"L{right:.1f} {top:.1f}"
    )
    return f'<path d="{path}" stroke="{RED}" stroke-width="2"/>'


def _text(text: str, most: int) -> str:
    return html.escape(text if len(text) <= most else text[: most - 1] + "…")
