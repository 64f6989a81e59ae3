"""Live view of a run on a terminal, line by line, fitted to its width.

Invariants:
- no line is wider than the terminal: it would be wrapped there, and drawn over in the wrong place;
- a word or a number is shown whole or not at all: what has no room goes to the next line, and
  columns of the table of servers go, those first that say least.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from rlboost_jax.messages import FleetStatus, InstanceStatus
from rlboost_jax.observe.cost import total

STATE_STYLES: Final = {"ready": "green", "pulling": "cyan", "joining": "yellow", "leaving": "red"}
BARS: Final = "▁▂▃▄▅▆▇█"
HISTORY: Final = 48  # steps in the sparkline
RECENT: Final = 10  # steps that the time left is reckoned from
LEAST_WIDTH: Final = 20  # letters; narrower, lines are cut
# Columns of the table; where there is no room, the one with the highest number goes first.
_COLUMNS: Final = (
    *(("server", 0), ("state", 1), ("policy", 3), ("runs", 2), ("waits", 4)),
    *(("tokens", 5), ("drafts", 9), ("line", 8), ("age", 6), ("$/h", 7)),
)
_LEFT: Final = ("server", "state")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """State to show."""

    num_steps: int
    seconds: float  # since this start
    rows: Sequence[Mapping[str, Any]] = ()  # of all steps that are done
    accuracy: float | None = None  # the last that was measured
    status: FleetStatus | None = None
    dollars: float | None = None  # the bill so far: that of all steps, and what came since
    phases: Sequence[tuple[str, float]] = ()  # what takes a while, and for how long so far


def view_lines(shown: Shown, *, width: int, height: int) -> list[Text]:
    """The view from top to bottom, each line at most `width` cells.

    Args:
        height: most lines; servers that have no room are counted.
    """
    width = max(width, LEAST_WIDTH)
    above = [Text(), *_headline(shown, width)]
    if shown.rows:
        above += _last_step(shown, width)
    below = [] if shown.status is None else _fleet_lines(shown, shown.status, width)
    for text, seconds in shown.phases:
        below += folded([f" {text} …", clock(seconds)], width, style="cyan")
    table: list[Text] = []
    if shown.status is not None:
        room = height - len(above) - len(below) - 1
        table = [Text(), *fleet_table(shown.status.instances, width, most=max(3, room))]
    lines = [*above, *table, *below]
    for line in lines:
        line.truncate(width)  # of a single word that is wider than all there is
    return lines


def fleet_table(instances: Sequence[InstanceStatus], width: int, *, most: int) -> list[Text]:
    """A row for each server, as far as there are lines; columns as far as there is room."""
    if not instances:
        return [Text(" no server yet", "dim")]
    cells = {one.instance: _cells(one) for one in instances}
    widths = {
        name: max(cell_len(name), *(cell_len(row[name]) for row in cells.values()))
        for name, _ in _COLUMNS
    }
    for name in ("drafts", "line", "$/h"):
        if not any(row[name] for row in cells.values()):
            widths.pop(name)
    for name, _ in sorted(_COLUMNS, key=lambda column: -column[1]):
        if sum(widths.values()) + 2 * len(widths) <= width or len(widths) == 1:
            break
        widths.pop(name, None)
    lines = [_row({name: name for name in widths}, widths, {}, "dim")]
    fits = len(instances) if len(instances) < most else most - 2
    for one in instances[:fits]:
        styles = {"state": STATE_STYLES.get(one.state, "")}
        if one.reserved:
            styles["server"] = "bold"
        lines.append(_row(cells[one.instance], widths, styles, ""))
    if fits < len(instances):
        lines.append(Text(f" and {len(instances) - fits} more", "dim"))
    return lines


def folded(pieces: Iterable[str], width: int, *, style: str = "") -> list[Text]:
    """Join pieces, starting a new line where the next has no room.

    A piece wider than a line is divided at its spaces; others are not divided.
    """
    lines: list[str] = []
    for piece in filter(None, pieces):
        joined = f"{lines[-1]}   {piece.strip()}" if lines else piece
        if cell_len(joined) <= width:
            lines[-1:] = [joined]
            continue
        lines.append("")
        for word in piece.split():
            longer = f"{lines[-1]} {word}"  # after a space the first, too
            if lines[-1] and cell_len(longer) > width:
                lines.append(f" {word}")
            else:
                lines[-1] = longer
    return [Text(line, style) for line in lines if line]


def spark(values: Sequence[float]) -> str:
    """Values between 0 and 1 as a line of bars."""
    top = len(BARS) - 1
    return "".join(BARS[round(min(1.0, max(0.0, value)) * top)] for value in values)


def seconds_left(rows: Sequence[Mapping[str, Any]], num_steps: int) -> float | None:
    """Seconds for the remaining steps at the mean of recent ones; None before there is one.

    The first step of a run is left out where there are others: it has waited for servers.
    """
    known = [row["step_seconds"] for row in rows[1:] or rows if row.get("step_seconds")]
    if not known:
        return None
    recent = known[-RECENT:]
    return (num_steps - rows[-1]["step"] - 1) * sum(recent) / len(recent)


def clock(seconds: float) -> str:
    """Format seconds, such as 1:05, or 2:03:04 with hours."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def number(row: Mapping[str, Any], key: str, digits: int) -> str:
    value = row.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def rate(row: Mapping[str, Any], key: str) -> str:
    """Tokens per second over the step."""
    seconds, tokens = row.get("step_seconds"), row.get(key)
    return "–" if not seconds or tokens is None else f"{tokens / seconds:,.0f}"


def split(row: Mapping[str, Any]) -> str:
    reserved, preemptible = rate(row, "tokens_reserved"), rate(row, "tokens_preemptible")
    return f"{reserved} reserved + {preemptible} preemptible"


def _headline(shown: Shown, width: int) -> list[Text]:
    done = shown.rows[-1]["step"] + 1 if shown.rows else 0
    left = seconds_left(shown.rows, shown.num_steps)
    bars = min(32, width - 4)
    full = round(bars * min(1.0, done / max(1, shown.num_steps)))
    return folded(
        [
            " rlboost-jax",
            f"{done}/{shown.num_steps} steps",
            "━" * full + "─" * (bars - full),
            f"{clock(shown.seconds)} so far",
            "" if left is None or done >= shown.num_steps else f"about {clock(left)} left",
        ],
        width,
        style="bold",
    )


def _last_step(shown: Shown, width: int) -> Iterator[Text]:
    row = shown.rows[-1]
    rewards = [each["reward_mean"] or 0.0 for each in shown.rows[-min(HISTORY, width - 18) :]]
    accuracy = "" if shown.accuracy is None else f"held-out accuracy {shown.accuracy:.3f}"
    yield from folded(
        [f" reward {number(row, 'reward_mean', 3)}", spark(rewards), accuracy], width, style="green"
    )
    yield from folded(
        [
            f" loss {_signed(row.get('loss'))}",
            f"KL {_signed(row.get('kl'))}" if row.get("kl") is not None else "",
            f"length {number(row, 'response_length_mean', 1)} tokens",
        ],
        width,
    )
    yield from folded([f" {rate(row, 'tokens_generated')} tokens/s", f"({split(row)})"], width)


def _fleet_lines(shown: Shown, status: FleetStatus, width: int) -> list[Text]:
    ahead = shown.rows[-1].get("cost_forecast_dollars") if shown.rows else None
    window = f"seeding window open, {status.window_seconds:.1f} s" if status.window_open else ""
    return [
        *folded(
            [
                f" {status.finished}/{status.total} responses",
                f"{status.joined} joined, {status.lost} lost"
                + (f" ({status.left} with notice)" if status.left else ""),
                f"{total(shown.rows, 'requests_migrated'):.0f} migrated",
                f"{total(shown.rows, 'tokens_lost'):.0f} tokens lost",
            ],
            width,
        ),
        *folded(
            [
                f" ${shown.dollars:.4f}" if shown.dollars else "",
                f"of about ${ahead:.4f}" if ahead else "",
                window,
            ],
            width,
        ),
    ]


def _cells(one: InstanceStatus) -> dict[str, str]:
    return {
        "server": one.instance,
        "state": one.state,
        "policy": str(one.version) if one.version >= 0 else "–",
        "runs": str(one.running),
        "waits": str(one.waiting),
        "tokens": f"{one.tokens:,}",
        "drafts": f"{one.drafts[1] / one.drafts[0]:.0%}" if one.drafts[0] else "",
        "line": _line(one),
        "age": clock(one.seconds),
        "$/h": f"{one.price_per_hour:.2f}" if one.price_per_hour else "",
    }


def _row(
    cells: Mapping[str, str], widths: Mapping[str, int], styles: Mapping[str, str], style: str
) -> Text:
    line = Text(style=style)
    for name, room in widths.items():
        space = " " * (room - cell_len(cells[name]))
        text = f"{cells[name]}{space}" if name in _LEFT else f"{space}{cells[name]}"
        line.append(f" {text} ", styles.get(name, ""))
    return line


def _line(one: InstanceStatus) -> str:
    """Round trip, share of packets lost (if over a hundredth), and lease of a connection."""
    if not one.round_trip:
        return ""
    lost = f" {one.losses:.0%} lost" if one.losses > 0.01 else ""
    return f"{1e3 * one.round_trip:.0f} ms{lost}, {one.lease_seconds:.2g} s"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
