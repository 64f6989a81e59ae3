"""A comparison as one HTML file that needs no network, in the style of the report."""

import html
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import accumulate
from string import Template
from typing import Any, Final

from rlboost_jax.observe.comparing.compared_run import ComparedRun
from rlboost_jax.observe.comparing.divergence import digest, sentence
from rlboost_jax.observe.comparing.promise_picture import colour_of, picture
from rlboost_jax.observe.comparing.side_by_side import all_steps, differing, facts, marks
from rlboost_jax.observe.page.assets import asset, comparison_script, inert, report_policy
from rlboost_jax.observe.page.panel_records import Field, Format, Panel, Series

MOST_ROWS: Final = 2_000  # steps of the table of digests, the newest
SHOWN_DIGITS: Final = 16
_SERVERS: Final = "instances_lost"
_COST: Final = "cost_dollars"

# Panels: id, title, caption, fields of (what, title of the axis, format); sums are over all steps
# so far.
_PANELS: Final[tuple[tuple[str, str, str, tuple[tuple[str, str, Format], ...]], ...]] = (
    (
        "learning",
        "Learning",
        "The first run is solid, the others are dashed: where they are equal one lies on the "
        "other. Dots are held-out prompts.",
        (("reward_mean", "reward", "number"), ("accuracy", "held-out accuracy", "number")),
    ),
    (
        "losses",
        "Loss and responses",
        "The loss as it is minimised; tokens of a response.",
        (("loss", "loss", "number"), ("response_length_mean", "tokens per response", "number")),
    ),
    (
        "fleet",
        "Servers and seconds",
        "Servers lost so far, with notice or without, and the seconds of each step: these may "
        "differ between runs with equal weights.",
        ((_SERVERS, "servers lost", "number"), ("step_seconds", "seconds", "seconds")),
    ),
    ("cost", "Cost", "Dollars so far.", ((_COST, "dollars", "dollars"),)),
)
_SUMMED: Final = (_SERVERS, _COST)


def comparison_page(runs: Sequence[ComparedRun]) -> str:
    """Build the whole page."""
    script, style = comparison_script(), asset("style.css")
    first, *others = runs
    remarks = [line for run in runs for line in run.remarks]
    return Template(asset("comparison.html")).substitute(
        policy=report_policy(script, style),
        name=html.escape(" · ".join(run.name for run in runs)),
        headline=html.escape(sentence(first, others)),
        remarks="".join(f"<p class='warning'>{html.escape(line)}</p>" for line in remarks),
        picture=picture(runs),
        facts=_table(runs, facts(runs)),
        differing="".join(_differing(runs)),
        digests=_table(runs, list(_digests(runs))),
        comparison=inert(_values(runs)),
        style=style,
        script=script,
    )


def _values(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Data that the script draws: panels, and their numbers step by step."""
    steps = all_steps(runs)
    ends = {run.final["step"] for run in runs if run.final is not None} - set(steps)
    places = sorted({*steps, *ends})
    points: dict[str, list[Any]] = {"step": places}
    for number, run in enumerate(runs):
        known = dict(run.steps)
        if run.final is not None and run.final["step"] not in known:
            known[run.final["step"]] = run.final
        points[f"{number}/version"] = [known[s]["version"] if s in known else None for s in places]
        for key in dict.fromkeys(key for *_, fields in _PANELS for key, *_ in fields):
            found = {step: row[key] for step, row in known.items()}
            if key in _SUMMED:
                sums = accumulate(value or 0 for value in found.values())
                found = dict(zip(found, sums, strict=True))
            points[f"{number}/{key}"] = [found.get(step) for step in places]
    return {"panels": [asdict(panel) for panel in _panels(runs)], "points": points}


def _panels(runs: Sequence[ComparedRun]) -> Iterator[Panel]:
    for name, title, caption, fields in _PANELS:
        yield Panel(
            id=name,
            title=title,
            caption=caption,
            fields=tuple(
                Field(
                    title=label,
                    format=form,
                    series=tuple(
                        Series(
                            key=f"{number}/{key}",
                            name=f"{label}, {run.name}",
                            colour=colour_of(number),
                            kind="dots" if key == "accuracy" else "line",
                            x=f"{number}/version" if key == "accuracy" else "step",
                            dash=number > 0,
                            unless_zero=key == _COST,
                        )
                        for number, run in enumerate(runs)
                    ),
                )
                for key, label, form in fields
            ),
        )


def _table(runs: Sequence[ComparedRun], rows: Sequence[tuple[str, Sequence[str]]]) -> str:
    names = "".join(f"<th scope='col'>{html.escape(run.name)}</th>" for run in runs)
    lines = (
        f"<tr><th scope='row'>{html.escape(name)}</th>"
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return f"<table><thead><tr><td></td>{names}</tr></thead><tbody>{''.join(lines)}</tbody></table>"


def _differing(runs: Sequence[ComparedRun]) -> Iterator[str]:
    for heading, lines in differing(runs):
        items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
        yield f"<h3>{html.escape(heading)}</h3><ul class='lines'>{items}</ul>"


def _digests(runs: Sequence[ComparedRun]) -> Iterator[tuple[str, list[str]]]:
    for step in all_steps(runs)[-MOST_ROWS:]:
        cells = []
        for run, mark in zip(runs, marks(runs, step), strict=True):
            sign = " differs" if mark is False else ""
            cells.append((digest(run, step)[:SHOWN_DIGITS] or "–") + sign)
        yield f"step {step}", cells
