"""`report.html`: a run for a person, in one file that needs no network.

Drawn from `metrics.jsonl`, `samples.jsonl`, `events.jsonl`, `config.json` and, once the run is
over, `summary.json` alone, so it can be made again from a finished workdir, or from one whose run
is still going on. The figures are those of the live page, with the same code (`page/`).
"""

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any, Final

from rlboost_jax.observe.cost import comparison
from rlboost_jax.observe.diagnostics import diagnose
from rlboost_jax.observe.events import read_events
from rlboost_jax.observe.history import history_lines
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.page.assets import asset, report_policy, report_script
from rlboost_jax.observe.page.panels import panels, pretends
from rlboost_jax.observe.page.points import ESTIMATED, columns, points_of
from rlboost_jax.observe.page.stream import FLEET_CAPTION, life_values
from rlboost_jax.observe.pools import pool_lines
from rlboost_jax.observe.sample_table import sample_groups
from rlboost_jax.observe.samples import read_samples
from rlboost_jax.observe.summary import Summary, duration, headline, read_summary, summarize
from rlboost_jax.observe.timeline import lives
from rlboost_jax.settings.load import read_run_config
from rlboost_jax.settings.plan import plan_text
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.storage import durable

FILE: Final = "report.html"
MOST_POINTS: Final = 10_000  # of a longer run the older ones are thinned out
MOST_LIVES: Final = 20_000  # the newest
ALONE, OWN = ESTIMATED
DIGITS: Final = 7  # of a number that is drawn


def write_report(workdir: str | Path) -> Path:
    """Write `<workdir>/report.html` in one piece and return its path.

    Raises ConfigError where `workdir` holds no run.
    """
    workdir = Path(workdir)
    config, rows = read_run_config(workdir / "config.json"), read_metrics(workdir)
    summary = read_summary(workdir)
    if summary is None or summary.steps != len(rows):  # the run goes, or went, further
        price = config.fleet.reserved_price_per_hour
        summary = summarize(rows, reserved_price_per_hour=price)
    page = report_page(
        *(config, summary, rows, read_events(workdir), read_samples(workdir)),
        name=workdir.name,
        history=tuple(history_lines(workdir)),
    )
    durable.write(workdir / FILE, page.encode("utf-8", "replace"))
    return workdir / FILE


def report_page(
    config: RunConfig,
    summary: Summary,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
    *,
    name: str,
    history: Sequence[str] = (),
) -> str:
    """The whole page. What needs rows, events or samples is left out where there are none.

    Args:
        history: where the run comes from and what of it was changed.
    """
    script, style = report_script(), asset("style.css")
    return Template(asset("report.html")).substitute(
        policy=report_policy(script, style),
        name=html.escape(name),
        headline=html.escape(headline(summary)),
        tiles="\n".join(_tile(*tile) for tile in _tiles(config, summary)),
        warnings="".join(f"<p class='warning'>{html.escape(s)}</p>" for s in diagnose(config, rows))
        + "".join(
            f"<p class='change'>{html.escape(s)}</p>" for s in (*history, *pool_lines(events))
        ),
        plan=html.escape(plan_text(config)),
        run=_inert(report_values(config, rows, events, samples)),
        style=style,
        script=script,
    )


def report_values(
    config: RunConfig,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """What is drawn, as JSON has it."""
    points = points_of(_with_estimate(config, rows), MOST_POINTS).all
    everyone = lives(events)
    groups, left_out = sample_groups(samples)
    return {
        "panels": panels(config, alone=any(ALONE in point for point in points)),
        "points": {key: [_rounded(v) for v in values] for key, values in columns(points).items()},
        "lives": [life_values(life) for life in everyone[-MOST_LIVES:]],
        "now": max((life.end for life in everyone), default=0.0),
        "fleet_caption": FLEET_CAPTION,
        "samples": groups,
        "samples_caption": "Whole groups of the first prompts of a step"
        + (f"; samples.jsonl has {left_out:,} more." if left_out else "."),
    }


def _with_estimate(
    config: RunConfig, rows: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Rows with dollars so far of the steps alone and, estimated, on the reserved devices alone;
    as they are where nothing can be compared."""
    price = config.fleet.reserved_price_per_hour
    whole = None if pretends(config) else comparison(rows, reserved_price_per_hour=price)
    if whole is None:
        return rows
    tokens = list(accumulate(row["tokens_delivered"] or 0 for row in rows))
    share = whole.reserved_only / tokens[-1] if tokens[-1] else 0.0
    own = accumulate((row["cost_dollars"] or 0) - row["cost_between_dollars"] for row in rows)
    both = zip(rows, tokens, own, strict=True)
    return [{**row, ALONE: share * count, OWN: paid} for row, count, paid in both]


def _rounded(value: Any) -> Any:
    """As good for a figure, in fewer letters."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _inert(values: Mapping[str, Any]) -> str:
    """JSON within a page: no text in it ends the element, or begins another."""
    text = json.dumps(values, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _tiles(config: RunConfig, summary: Summary) -> Iterator[tuple[str, str, str]]:
    """(what, number, note)"""
    if summary.last_accuracy is not None:
        # The rows may be gone that knew the first.
        first = "" if summary.first_accuracy is None else f"from {summary.first_accuracy:.3f}"
        yield "held-out accuracy", f"{summary.last_accuracy:.3f}", first
    yield "updates", str(summary.steps), f"in {duration(summary.seconds)}"
    yield "servers lost", str(summary.instances_lost), f"{summary.instances_joined} joined"
    share = summary.tokens_lost / summary.tokens_generated if summary.tokens_generated else 0.0
    yield "tokens lost", f"{summary.tokens_lost:,}", f"{share:.3%} of {summary.tokens_generated:,}"
    yield "requests migrated", f"{summary.requests_migrated:,}", "continued, never begun again"
    if summary.turns_mean is not None:
        yield "turns", f"{summary.turns_mean:.1f}", "of an episode"
    if summary.tool_calls:
        yield "tool calls", f"{summary.tool_calls:,}", f"{summary.tool_failures:,} failed"
    if summary.episodes_left_out:
        note = "whose reward nobody knows: not trained on"
        yield "episodes left out", f"{summary.episodes_left_out:,}", note
    yield "cost", f"${summary.cost_dollars:.4f}", _cost_note(config, summary)
    if summary.max_logprob_gap is not None:
        gap = summary.max_logprob_gap
        yield "log-prob gap", f"{gap:.1e}" if gap else "0", "largest, engine to learner, nats"


def _cost_note(config: RunConfig, summary: Summary) -> str:
    if pretends(config):
        return "at prices that are set; all of it ran on this host"
    if summary.steps_dollars is None or summary.reserved_only_dollars is None:
        return "nothing to compare it with: reserved devices generated nothing"
    return (
        f"of it ${summary.steps_dollars:.4f} for the steps themselves, about "
        f"${summary.reserved_only_dollars:.4f} for the same on reserved devices alone"
    )


def _tile(what: str, number: str, note: str) -> str:
    what, number, note = map(html.escape, (what, number, note))
    return (
        f"<div class='tile'><div class='what'>{what}</div><div class='number'>{number}</div>"
        f"<div class='note'>{note}</div></div>"
    )
