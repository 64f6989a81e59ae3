"""`report.html`: a run for a person, in one file that needs no network.

Drawn from `metrics.jsonl`, `samples.jsonl`, `events.jsonl`, `config.json` and, once the run is
over, `summary.json` alone, so it can be made again from a finished workdir, or from one whose run
is still going on.
"""

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any, Final

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from rlboost_jax import durable
from rlboost_jax.observe import figures, policy_figures
from rlboost_jax.observe.events import read_events
from rlboost_jax.observe.figures import reward_parts
from rlboost_jax.observe.history import history_lines
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.sample_table import sample_section
from rlboost_jax.observe.samples import read_samples
from rlboost_jax.observe.signs import signs
from rlboost_jax.observe.summary import Summary, duration, headline, read_summary, summarize
from rlboost_jax.observe.timeline import lives
from rlboost_jax.settings.load import read_run_config
from rlboost_jax.settings.plan import plan_text
from rlboost_jax.settings.run import RunConfig

FILE: Final = "report.html"


@dataclass(frozen=True, kw_only=True)
class _Section:
    title: str
    figure: go.Figure
    caption: str


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
    durable.write(workdir / FILE, page.encode())
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
    template = Template(
        resources.files(__package__).joinpath("report_template.html").read_text("utf-8")
    )
    return template.substitute(
        name=html.escape(name),
        headline=html.escape(headline(summary)),
        tiles="\n".join(_tile(*tile) for tile in _tiles(config, summary)),
        warnings="".join(f"<p class='warning'>{html.escape(s)}</p>" for s in signs(config, rows))
        + "".join(f"<p class='change'>{html.escape(line)}</p>" for line in history),
        sections="\n".join(map(_section, _sections(config, rows, events))),
        samples=sample_section(samples),
        plan=html.escape(plan_text(config)),
        plotly=get_plotlyjs(),
    )


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
    yield "cost", f"${summary.cost_dollars:.4f}", _cost_note(config, summary)
    if summary.max_logprob_gap is not None:
        gap = summary.max_logprob_gap
        yield "log-prob gap", f"{gap:.1e}" if gap else "0", "largest, engine to learner, nats"


def _cost_note(config: RunConfig, summary: Summary) -> str:
    if _pretends(config):
        return "at prices that are set; all of it ran on this host"
    if summary.steps_dollars is None or summary.reserved_only_dollars is None:
        return "nothing to compare it with: reserved devices generated nothing"
    return (
        f"of it ${summary.steps_dollars:.4f} for the steps themselves, about "
        f"${summary.reserved_only_dollars:.4f} for the same on reserved devices alone"
    )


def _pretends(config: RunConfig) -> bool:
    """Whether the fleet shares the learner's host: it is billed as if it did not, and without it
    the reserved devices would be faster than they were."""
    return config.fleet.provider == "local"


def _sections(
    config: RunConfig, rows: Sequence[Mapping[str, Any]], events: Sequence[Mapping[str, Any]]
) -> Iterator[_Section]:
    price = config.fleet.reserved_price_per_hour
    if rows:
        yield _Section(
            title="Learning",
            figure=figures.learning(rows),
            caption=_whose_tokens(config.algorithm.lag),
        )
        yield _Section(
            title="Updates",
            figure=policy_figures.updates(rows),
            caption="Entropy that falls towards 0 says that the policy stops exploring; the "
            "gradient's norm is taken before it is clipped at "
            f"{config.learner.max_gradient_norm:g}.",
        )
        yield _Section(
            title="Responses",
            figure=policy_figures.responses(rows),
            caption="Responses are cut off at "
            f"{config.sampling.max_response_tokens:,} tokens. Where all rewards of a group are "
            "equal, a comparison within the group has nothing to teach.",
        )
    if figures.has_lag(rows):
        yield _Section(
            title="Lag",
            figure=figures.lag(rows),
            caption="Of the policy that was trained to the version that had sampled: the mean "
            "ratio of a token's probabilities, the share of tokens that were clipped, and the "
            "KL from that version.",
        )
    if reward_parts(rows):
        yield _Section(
            title="What the reward is made of",
            figure=figures.rewards(rows),
            caption="The mean of each part over the responses of a step.",
        )
    if everyone := lives(events):
        yield _Section(
            title="Fleet",
            figure=figures.fleet(everyone),
            caption="Each bar is a server, from its order on. A cross is one that vanished without "
            "a word: its rollouts went on elsewhere from the tokens collected.",
        )
    if rows:
        yield _Section(
            title="Tokens per second",
            figure=figures.throughput(rows),
            caption="Tokens sampled on reserved and on preemptible devices, over the whole "
            "duration of the step.",
        )
        yield _Section(
            title="Waits and the seeding window",
            figure=figures.waits(rows),
            caption="The window, in which the reserved devices generate before they train, is "
            "moved until neither side waits for the other.",
        )
        yield _Section(
            title="Cost",
            figure=figures.cost(rows, reserved_price_per_hour=None if _pretends(config) else price),
            caption=f"At ${price:.2f} an hour reserved and ${config.fleet.price_per_hour:.2f} for "
            "each preemptible server, which are settings. " + _what_is_compared(config),
        )


def _what_is_compared(config: RunConfig) -> str:
    if _pretends(config):
        return (
            "This fleet shared one host with the learner and cost nothing by itself, so it is not "
            "compared with reserved devices alone."
        )
    return (
        "Of this run the bill has start, warm-up and what lies between steps. The lower two leave "
        "these out: steps from their first request to their update, and an estimate of the same "
        "at the speed that the reserved devices showed in their seeding windows."
    )


def _whose_tokens(lag: int) -> str:
    weights = "the weights being updated"
    if lag:
        weights = f"those of one version, {lag} update{'s' * (lag > 1)} of the policy before"
    return (
        f"Every token of an update was sampled from {weights}, whatever became of the server that "
        "sampled it."
    )


def _section(section: _Section) -> str:
    figure = section.figure.to_html(
        full_html=False,
        include_plotlyjs=False,
        config={"displayModeBar": False, "responsive": True},
    )
    return (
        f"<section><h2>{html.escape(section.title)}</h2>{figure}"
        f"<p class='caption'>{html.escape(section.caption)}</p></section>"
    )


def _tile(what: str, number: str, note: str) -> str:
    what, number, note = map(html.escape, (what, number, note))
    return (
        f"<div class='tile'><div class='what'>{what}</div><div class='number'>{number}</div>"
        f"<div class='note'>{note}</div></div>"
    )
