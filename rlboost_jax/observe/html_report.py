"""Report of a run for people, `report.html`: one file that needs no network.

Drawn from `metrics.jsonl`, `samples.jsonl`, `events.jsonl`, `config.json` and, once the run is
over, `summary.json` alone, so it can be made again from a finished workdir, or from one whose run
is still alive. The figures are those of the live page, with the same code (`page/`).
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from string import Template
from typing import Any, Final

from rlboost_jax.observe.cost import comparison
from rlboost_jax.observe.diagnostics import diagnose
from rlboost_jax.observe.events_file import read_events
from rlboost_jax.observe.history import history_lines
from rlboost_jax.observe.metrics import read_rows, steps_of
from rlboost_jax.observe.page.assets import asset, inert, report_policy, report_script
from rlboost_jax.observe.page.chart_panels import panels, pretends
from rlboost_jax.observe.page.page_stream import FLEET_CAPTION, fleet_values, life_values
from rlboost_jax.observe.page.points import ESTIMATED, columns, points_of
from rlboost_jax.observe.pool_lines import pool_lines
from rlboost_jax.observe.sample_table import sample_groups
from rlboost_jax.observe.samples import read_samples
from rlboost_jax.observe.summary import Summary, duration, headline, read_summary, summarize
from rlboost_jax.observe.timeline import course_of
from rlboost_jax.platform import durable
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.dry_run import plan_text
from rlboost_jax.settings.run_config import RunConfig

FILE: Final = "report.html"
MOST_POINTS: Final = 10_000  # of a longer run the older ones are thinned out
MOST_LIVES: Final = 20_000  # the newest
ALONE, OWN = ESTIMATED
DIGITS: Final = 7  # of a number that is drawn
SHOWN_DIGITS: Final = 8  # of a digest: as wide as a tile
_FREE: Final = "all of it ran on this host; fleet.bill_local bills it at the prices that are set"


def write_report(workdir: str | Path) -> Path:
    """Write `<workdir>/report.html` in one piece and return its path.

    Raises ConfigError where `workdir` holds no run.
    """
    workdir = Path(workdir)
    config, rows = read_run_config(workdir / "config.json"), read_rows(workdir)
    events = read_events(workdir)
    summary = _summary(config, rows, events, read_summary(workdir))
    page = report_page(
        *(config, summary, rows, events, read_samples(workdir)),
        name=workdir.name,
        history=tuple(history_lines(workdir)),
    )
    durable.write(workdir / FILE, page.encode("utf-8", "replace"))
    return workdir / FILE


def _summary(
    config: RunConfig,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    known: Summary | None,
) -> Summary:
    """Sum up the rows, and what an earlier release has written elsewhere.

    Args:
        known: `summary.json`, if there is one.
    """
    price = config.fleet.as_billed().reserved_price_per_hour
    summary = summarize(rows, reserved_price_per_hour=price)
    complete = known is not None and known.steps == summary.steps
    if known is not None and complete and not any(row.get("final") for row in rows):
        summary = replace(summary, last_accuracy=known.last_accuracy)
    whole = complete and all("instances_left" in row for row in rows)
    if whole or not events:
        return summary
    tally = course_of(events).tally()  # with servers that came and went since the newest row
    return replace(
        summary,
        instances_joined=tally.joined,
        instances_lost=tally.lost,
        instances_left=tally.left,
    )


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
    """Build the whole page. Parts that need rows, events or samples are left out without them.

    Args:
        history: where the run comes from and what of it was changed.
    """
    script, style = report_script(), asset("style.css")
    return Template(asset("report.html")).substitute(
        policy=report_policy(script, style),
        name=html.escape(name),
        headline=html.escape(headline(summary)),
        tiles="\n".join(_tile(*tile) for tile in _tiles(config, summary)),
        warnings="".join(
            f"<p class='warning'>{html.escape(s)}</p>" for s in diagnose(config, steps_of(rows))
        )
        + "".join(
            f"<p class='change'>{html.escape(s)}</p>" for s in (*history, *pool_lines(events))
        ),
        plan=html.escape(plan_text(config)),
        run=inert(report_values(config, rows, events, samples)),
        style=style,
        script=script,
    )


def report_values(
    config: RunConfig,
    rows: Sequence[Mapping[str, Any]],
    events: Sequence[Mapping[str, Any]],
    samples: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Values to draw, for JSON."""
    points = points_of(_with_estimate(config, rows), MOST_POINTS).all
    course = course_of(events) if events else None
    everyone = course.lives() if course else ()
    groups, left_out = sample_groups(samples)
    return {
        "panels": panels(config, alone=any(ALONE in point for point in points)),
        "points": {key: [_rounded(v) for v in values] for key, values in columns(points).items()},
        "lives": [life_values(life) for life in everyone[-MOST_LIVES:]],
        **fleet_values(course),
        "fleet_caption": FLEET_CAPTION,
        "samples": groups,
        "samples_caption": "Whole groups of the first prompts of a step"
        + (f"; samples.jsonl has {left_out:,} more." if left_out else "."),
    }


def _with_estimate(
    config: RunConfig, rows: Sequence[Mapping[str, Any]]
) -> Sequence[Mapping[str, Any]]:
    """Add to rows the dollars so far, as spent and as estimated on the reserved devices alone.

    The rows are unchanged where nothing can be compared.
    """
    price = config.fleet.as_billed().reserved_price_per_hour
    whole = None if pretends(config) else comparison(rows, reserved_price_per_hour=price)
    if whole is None:
        return rows
    tokens = list(accumulate(row["tokens_delivered"] or 0 for row in rows))
    share = whole.reserved_only / tokens[-1] if tokens[-1] else 0.0
    own = accumulate((row["cost_dollars"] or 0) - row["cost_between_dollars"] for row in rows)
    both = zip(rows, tokens, own, strict=True)
    return [{**row, ALONE: share * count, OWN: paid} for row, count, paid in both]


def _rounded(value: Any) -> Any:
    """Round a value as far as a figure allows, to save letters."""
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _tiles(config: RunConfig, summary: Summary) -> Iterator[tuple[str, str, str]]:
    """Tiles of the report: (what, number, note)."""
    if summary.last_accuracy is not None:
        # The rows may be gone that knew the first.
        first = "" if summary.first_accuracy is None else f"from {summary.first_accuracy:.3f}"
        yield "held-out accuracy", f"{summary.last_accuracy:.3f}", first
    yield "updates", str(summary.steps), f"in {duration(summary.seconds)}"
    left = f"{summary.instances_left} of them with notice; " if summary.instances_left else ""
    yield "servers lost", str(summary.instances_lost), f"{left}{summary.instances_joined} joined"
    share = summary.tokens_lost / summary.tokens_generated if summary.tokens_generated else 0.0
    yield "tokens lost", f"{summary.tokens_lost:,}", f"{share:.3%} of {summary.tokens_generated:,}"
    yield "requests migrated", f"{summary.requests_migrated:,}", "continued, never begun again"
    if summary.turns_mean is not None:
        yield "turns", f"{summary.turns_mean:.1f}", "of an episode"
    if summary.tool_calls:
        yield "tool calls", f"{summary.tool_calls:,}", f"{summary.tool_failures:,} failed"
    if summary.tokens_drafted:
        note = f"of {summary.tokens_drafted:,}; {summary.decode_steps_saved:,} decode steps saved"
        if summary.dollars_saved:
            note += f", about ${summary.dollars_saved:.4f}"
        yield "drafts accepted", f"{summary.drafts_accepted:,}", note
    if summary.episodes_left_out:
        note = "whose reward nobody knows: not trained on"
        yield "episodes left out", f"{summary.episodes_left_out:,}", note
    if summary.cost_dollars:
        yield "cost", f"${summary.cost_dollars:.4f}", _cost_note(config, summary)
    else:
        yield "cost", "nothing", _FREE if pretends(config) else "no prices are set"
    if summary.max_logprob_gap is not None:
        gap = summary.max_logprob_gap
        yield "log-prob gap", f"{gap:.1e}" if gap else "0", "largest, engine to learner, nats"
    if summary.params_digest:
        kind = "equal for equal settings on one kind of processor"
        note = kind if config.deterministic else "this run is not deterministic"
        yield "final weights", summary.params_digest[:SHOWN_DIGITS], f"SHA-256 begins so; {note}"


def _cost_note(config: RunConfig, summary: Summary) -> str:
    if pretends(config):
        return "at pretended prices: all of it ran on this host"
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
