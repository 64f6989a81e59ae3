"""The figures of a report that say how the policy changes: its updates and its responses.

Runs of before have rows without some of the numbers; what no row has is left out.
"""

from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from rlboost_jax.observe.figures import AMBER, BLUE, PALE, RED, TEAL, VIOLET, Rows, line, styled

HEIGHT = 500  # pixels, of four curves in two rows


def updates(rows: Rows) -> go.Figure:
    """Entropy and KL, gradient norm, clipped tokens and learning rate, each in a field of its own
    since their units have nothing in common."""
    fields = ("entropy and KL, nats per token", "gradient norm", "clipped tokens", "learning rate")
    figure = make_subplots(
        rows=2, cols=2, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=fields
    )
    steps = [row["step"] for row in rows]
    for key, name, colour, place in (
        ("entropy", "entropy", BLUE, (1, 1)),
        ("kl", "KL to the reference", RED, (1, 1)),
        ("gradient_norm", "gradient norm", TEAL, (1, 2)),
        ("clip_fraction", "clipped tokens", AMBER, (2, 1)),
        ("learning_rate", "learning rate", VIOLET, (2, 2)),
    ):
        values = _column(rows, key)
        if _known(values) and not (key == "kl" and not any(values)):
            figure.add_trace(line(steps, values, name, colour), row=place[0], col=place[1])
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(tickformat=".1%", row=2, col=1)
    figure.update_yaxes(exponentformat="e", row=2, col=2)
    return _titled(styled(figure, x="", height=HEIGHT))


def responses(rows: Rows) -> go.Figure:
    """How long they are, and the shares that are cut off or that teach nothing."""
    figure = make_subplots(specs=[[{"secondary_y": True}]])
    steps = [row["step"] for row in rows]
    for key, name, colour, secondary in (
        ("response_length_mean", "mean length", BLUE, False),
        ("response_length_max", "longest", PALE, False),
        ("truncated_fraction", "cut off", RED, True),
        ("uniform_groups_fraction", "groups of equal rewards", AMBER, True),
    ):
        if _known(values := _column(rows, key)):
            figure.add_trace(line(steps, values, name, colour), secondary_y=secondary)
    figure.update_yaxes(title_text="tokens", rangemode="tozero", secondary_y=False)
    figure.update_yaxes(
        title_text="share",
        tickformat=".0%",
        tickmode="auto",
        range=[0, 1.02],
        showgrid=False,
        secondary_y=True,
    )
    return styled(figure, x="update")


def _titled(figure: go.Figure) -> go.Figure:
    """The curves are named by their fields; the legend tells two in one apart."""
    figure.update_annotations(font_size=13)
    figure.update_xaxes(title_text="update", row=2)
    figure.update_layout(margin={"t": 64}, legend={"y": 1.08})
    for trace in figure.data:
        trace.showlegend = trace.name in ("entropy", "KL to the reference")
    return figure


def _column(rows: Rows, key: str) -> list[Any]:
    return [row.get(key) for row in rows]


def _known(values: list[Any]) -> bool:
    return any(value is not None for value in values)
