"""The figures of a report."""

import html
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlboost_jax.observe.cost import reserved_only_dollars
from rlboost_jax.observe.timeline import Life, ready_counts

Rows = Sequence[Mapping[str, Any]]

INK, QUIET, GRID = "#1c2330", "#7a8496", "#e8ebf0"
BLUE, TEAL, AMBER, RED, VIOLET = "#2f6fed", "#0e9f84", "#e39b1f", "#d63b3b", "#7c5cd6"
PALE = "#c9d6f5"
REWARD_PREFIX = "reward/"


def learning(rows: Rows) -> go.Figure:
    """Reward, held-out accuracy, and beside them how long responses are."""
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    steps = _column(rows, "step")
    evaluated = [row for row in rows if row["accuracy"] is not None]
    lengths = _line(steps, _column(rows, "response_length_mean"), "response length", PALE, width=2)
    figure.add_trace(lengths, secondary_y=True)
    figure.add_trace(_line(steps, _column(rows, "reward_mean"), "reward, training prompts", BLUE))
    figure.add_trace(
        go.Scatter(
            x=_column(evaluated, "version"),  # of that policy
            y=_column(evaluated, "accuracy"),
            name="accuracy, held-out prompts",
            mode="lines+markers",
            line={"color": TEAL, "width": 2, "dash": "dot"},
            marker={"size": 8},
        )
    )
    figure.update_yaxes(range=[0, 1.02], title_text="reward, accuracy", secondary_y=False)
    figure.update_yaxes(
        title_text="tokens per response",
        rangemode="tozero",
        tickmode="auto",
        showgrid=False,
        secondary_y=True,
    )
    return _styled(figure, x="update")


def has_lag(rows: Rows) -> bool:
    """Whether any step was sampled from another version than the one that it trained."""
    return any(row.get("behaviour_kl") is not None for row in rows)


def lag(rows: Rows) -> go.Figure:
    """How far the policy that was trained was from the version that had sampled."""
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    steps = _column(rows, "step")
    for key, name, colour, secondary in (
        ("ratio_mean", "ratio", BLUE, False),
        ("clip_fraction", "clipped", AMBER, False),
        ("lag", "versions between", PALE, False),
        ("behaviour_kl", "KL, nats per token", RED, True),
    ):
        line = _line(steps, [row.get(key) for row in rows], name, colour)
        figure.add_trace(line, secondary_y=secondary)
    figure.update_yaxes(title_text="ratio, fraction, versions", secondary_y=False)
    figure.update_yaxes(
        title_text="nats per token", rangemode="tozero", showgrid=False, secondary_y=True
    )
    return _styled(figure, x="update")


def reward_parts(rows: Rows) -> list[str]:
    """Keys `reward/NAME` of the rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row if key.startswith(REWARD_PREFIX)))


def rewards(rows: Rows) -> go.Figure:
    """The parts that the reward is made of."""
    figure = go.Figure()
    steps = _column(rows, "step")
    colours = (BLUE, TEAL, AMBER, VIOLET, RED)
    for place, key in enumerate(reward_parts(rows)):
        values = [row.get(key) for row in rows]
        name = key.removeprefix(REWARD_PREFIX)
        figure.add_trace(_line(steps, values, name, colours[place % len(colours)]))
    figure.update_yaxes(title_text="mean of the responses")
    return _styled(figure, x="update")


def fleet(everyone: Sequence[Life]) -> go.Figure:
    """Each instance as a bar from arrival to end, with the number at work above."""
    figure = make_subplots(
        rows=2, cols=1, shared_xaxes=True, row_heights=[0.3, 0.7], vertical_spacing=0.06
    )
    course = ready_counts(everyone)
    last = max((life.end for life in everyone), default=0.0)
    figure.add_trace(
        go.Scatter(
            x=[seconds for seconds, _ in course] + [last],
            y=[count for _, count in course] + [course[-1][1]],
            line={"color": BLUE, "width": 1.5, "shape": "hv"},
            fill="tozeroy",
            fillcolor="rgba(47,111,237,0.12)",
            name="ready servers",
            showlegend=False,
        ),
        row=1,
        col=1,
    )
    for bars in (
        _bars(everyone, "starting, fetching weights", PALE, starting=True),
        _bars([life for life in everyone if not life.reserved], "ready for work", BLUE),
        _bars([life for life in everyone if life.reserved], "reserved, ready", VIOLET),
    ):
        if len(bars.base):
            figure.add_trace(bars, row=2, col=1)
    for marks in (
        _marks(everyone, "lost", "lost (killed or silent)", RED, "x"),
        _marks(everyone, "drained", "left with notice", AMBER, "diamond"),
    ):
        if len(marks.x):
            figure.add_trace(marks, row=2, col=1)
    lanes = max((life.lane for life in everyone), default=0) + 1
    figure.update_layout(barmode="overlay", bargap=0.25)
    figure.update_yaxes(title_text="ready", rangemode="tozero", dtick=1, row=1, col=1)
    figure.update_yaxes(
        title_text="servers",
        showticklabels=False,
        showgrid=False,
        autorange="reversed",
        row=2,
        col=1,
    )
    figure.update_xaxes(title_text="", row=1, col=1)
    figure = _styled(figure, x="", height=min(760, 230 + 34 * lanes))
    figure.update_xaxes(title_text="seconds", row=2, col=1)
    return figure


def throughput(rows: Rows) -> go.Figure:
    """Tokens generated per second of the step, by who generated them."""
    figure = go.Figure()
    for key, name, colour in (
        ("tokens_reserved", "reserved", VIOLET),
        ("tokens_preemptible", "preemptible", BLUE),
    ):
        rates = [_ratio(row[key], row["step_seconds"]) for row in rows]
        figure.add_trace(go.Bar(x=_column(rows, "step"), y=rates, name=name, marker_color=colour))
    figure.update_layout(barmode="stack", bargap=0.15)
    figure.update_yaxes(title_text="tokens per second")
    return _styled(figure, x="update")


def waits(rows: Rows) -> go.Figure:
    """Who waits for whom, beside the seeding window that balances the two."""
    figure = go.Figure()
    steps = _column(rows, "step")
    for key, name, colour in (
        ("step_seconds", "whole step", "#c3cad6"),
        ("train_wait_seconds", "learner waits for groups", AMBER),
        ("remote_wait_seconds", "servers wait for the learner", BLUE),
        ("train_seconds", "learner busy", TEAL),
    ):
        figure.add_trace(_line(steps, _column(rows, key), name, colour))
    window = _line(steps, _column(rows, "seeding_window_seconds"), "seeding window", VIOLET)
    window.line.dash = "dot"
    figure.add_trace(window)
    figure.data[0].update(fill="tozeroy", fillcolor="rgba(232,235,240,0.5)")
    figure.update_yaxes(title_text="seconds", rangemode="tozero")
    return _styled(figure, x="update")


def cost(rows: Rows, *, reserved_price_per_hour: float) -> go.Figure:
    """Dollars so far, beside the estimate for the reserved devices alone."""
    figure = go.Figure()
    steps = _column(rows, "step")
    spent = list(accumulate(row["cost_dollars"] or 0.0 for row in rows))
    whole = reserved_only_dollars(rows, reserved_price_per_hour=reserved_price_per_hour)
    if whole is not None:
        tokens = list(accumulate(row["tokens_delivered"] or 0 for row in rows))
        alone = [whole * count / tokens[-1] for count in tokens] if tokens[-1] else []
        figure.add_trace(
            _line(steps, alone, "reserved devices alone (estimate)", QUIET, dash="dash")
        )
    figure.add_trace(_line(steps, spent, "this run", TEAL, width=3))
    figure.update_yaxes(title_text="dollars", tickprefix="$", rangemode="tozero")
    return _styled(figure, x="update")


def _bars(lives: Iterable[Life], name: str, colour: str, *, starting: bool = False) -> go.Bar:
    """Bars over the ready part of lives, or over the part before it."""
    spans = []
    for life in lives:
        ready = life.end if life.ready is None else life.ready
        begin, end = (life.begin, ready) if starting else (ready, life.end)
        if end > begin:
            spans.append((life, begin, end))
    return go.Bar(
        base=[begin for _, begin, _ in spans],
        x=[end - begin for _, begin, end in spans],
        y=[life.lane for life, _, _ in spans],
        orientation="h",
        name=name,
        marker={"color": colour, "line": {"width": 0}},
        customdata=[[_inert(life.instance), begin, end] for life, begin, end in spans],
        hovertemplate="%{customdata[0]}: %{customdata[1]:.1f} to %{customdata[2]:.1f} s"
        f"<extra>{name}</extra>",
    )


def _marks(lives: Iterable[Life], ending: str, name: str, colour: str, symbol: str) -> go.Scatter:
    ended = [life for life in lives if life.ending == ending]
    return go.Scatter(
        x=[life.end for life in ended],
        y=[life.lane for life in ended],
        mode="markers",
        name=name,
        marker={
            "color": colour,
            "symbol": symbol,
            "size": 10,
            "line": {"width": 1.5, "color": "white"},
        },
        customdata=[[_inert(life.instance), _inert(life.reason)] for life in ended],
        hovertemplate="%{customdata[0]} at %{x:.1f} s<br>%{customdata[1]}<extra></extra>",
    )


def _inert(said: str) -> str:
    """Words of a server's for a text in which plotly knows tags: no link of theirs is one here."""
    return html.escape(said, quote=False)


def _line(
    x: list[Any], y: list[Any], name: str, colour: str, *, width: float = 2, dash: str = "solid"
) -> go.Scatter:
    return go.Scatter(
        x=x, y=y, name=name, mode="lines", line={"color": colour, "width": width, "dash": dash}
    )


def _styled(figure: go.Figure, *, x: str, height: int = 340) -> go.Figure:
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 60, "r": 24, "t": 36, "b": 48},
        font={"family": "system-ui, -apple-system, Segoe UI, sans-serif", "size": 13, "color": INK},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "xanchor": "left", "x": 0},
        hovermode="closest",
        paper_bgcolor="white",
        plot_bgcolor="white",
    )
    figure.update_xaxes(title_text=x, gridcolor=GRID, zeroline=False)
    figure.update_yaxes(gridcolor=GRID, zeroline=False)
    return figure


def _column(rows: Iterable[Mapping[str, Any]], key: str) -> list[Any]:
    return [row[key] for row in rows]


def _ratio(amount: float | None, seconds: float | None) -> float | None:
    return None if amount is None or not seconds else amount / seconds
