"""What a person sees while a run lives: a view that is redrawn, or plain lines.

On a terminal the view shows the step, reward, speed, fleet and cost, four times a second.
Anywhere else (a file, a pipe, `observe.live = False`) each step and each phase is a line.
"""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlboost_jax.closing import Closing
from rlboost_jax.messages import FleetStatus
from rlboost_jax.observe.cost import reserved_only_dollars, total
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.summary import Summary
from rlboost_jax.pulse import PULSE
from rlboost_jax.relay.start import Relayed

STATE_STYLES = {"ready": "green", "pulling": "cyan", "joining": "yellow", "leaving": "red"}
BARS = "▁▂▃▄▅▆▇█"
HISTORY = 48  # steps in the sparkline
SAMPLE_LETTERS = 70  # of a prompt and of a response


class _Terminal(RichConsole):
    """Knows its width through a relay, too."""

    @property
    def size(self) -> ConsoleDimensions:
        if isinstance(self.file, Relayed) and self.file.isatty():
            return ConsoleDimensions(*self.file.terminal_size())
        return super().size

    @size.setter
    def size(self, new_size: tuple[int, int]) -> None:
        self._width, self._height = new_size


class Console(Closing):
    """Context manager; all methods may be called from any thread.

    Args:
        live: redraw a view where the output is a terminal.
        file: where to write; None is standard output.
    """

    def __init__(
        self,
        *,
        num_steps: int,
        reserved_price_per_hour: float,
        live: bool = True,
        file: TextIO | None = None,
    ) -> None:
        self._num_steps, self._price = num_steps, reserved_price_per_hour
        self._console = _Terminal(file=file or sys.stdout, highlight=False, soft_wrap=True)
        self._rows: list[Mapping[str, Any]] = []
        self._accuracy: float | None = None
        self._status: FleetStatus | None = None
        self._phases: list[tuple[str, float]] = []  # text, when it began
        self._began = time.monotonic()
        self._live: Live | None = None
        if live and self._console.is_terminal:
            self._live = Live(
                get_renderable=self._view, console=self._console, refresh_per_second=4
            )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def close(self) -> None:
        """The view stays as it is; lines may follow."""
        if self._live:
            self._live.stop()

    def finish(self, summary: Summary) -> None:
        """What the run came to is said by whoever started it."""

    @contextmanager
    def phase(self, text: str) -> Iterator[None]:
        """Announce something that takes a while, such as "compiling the train step"."""
        began = time.monotonic()
        self._phases.append((text, began))
        if not self._live:
            self.note(f"{text} …")
        try:
            with PULSE.phase(text):
                yield
        finally:
            self._phases.remove((text, began))
        self.note(f"{text}: {time.monotonic() - began:.1f} s")

    def note(self, text: str) -> None:
        """A line of its own, above the view where there is one."""
        self._console.print(Text(text))

    def samples(self, rows: Sequence[SampleRow]) -> None:
        """The first of them, as far as it fits a line."""
        for row in rows[:1]:
            prompt, response = _one_line(row.prompt_text), _one_line(row.response_text)
            self.note(f"  sample: {prompt} → {response}  (reward {row.reward:.3g})")

    def step(self, row: Mapping[str, Any]) -> None:
        """A step is done; `row` is its row of metrics."""
        self._rows.append(row)
        if row.get("accuracy") is not None:
            self._accuracy = row["accuracy"]
        if not self._live:
            self.note(step_line(row, self._num_steps))

    def fleet(self, status: FleetStatus) -> None:
        """The fleet as it is now. Without a view, arrivals and losses come as lines."""
        before, self._status = self._status, status
        if not self._live and (changes := _changes(before, status)):
            self.note(changes)

    def _view(self) -> RenderableType:
        parts: list[RenderableType] = [Text(), self._headline()]
        if self._rows:
            parts.append(self._last_step())
        if self._status is not None:
            parts += [Text(), _fleet_table(self._status), self._fleet_line(self._status)]
        now = time.monotonic()
        parts += [
            Text(f"  {text} … {now - began:.0f} s", "cyan") for text, began in tuple(self._phases)
        ]
        return Group(*parts)

    def _headline(self) -> RenderableType:
        done = self._rows[-1]["step"] + 1 if self._rows else 0
        line = Table.grid(padding=(0, 2))
        line.add_row(
            Text(" rlboost-jax", "bold"),
            Text(f"step {done}/{self._num_steps}"),
            ProgressBar(total=self._num_steps, completed=done, width=32),
            Text(_clock(time.monotonic() - self._began), "dim"),
        )
        return line

    def _last_step(self) -> RenderableType:
        row = self._rows[-1]
        grid = Table.grid(padding=(0, 2))
        rewards = [r["reward_mean"] or 0.0 for r in self._rows[-HISTORY:]]
        accuracy = "–" if self._accuracy is None else f"{self._accuracy:.3f}"
        grid.add_row(
            " reward", Text(f"{_number(row, 'reward_mean', 3)}", "bold green"), spark(rewards)
        )
        grid.add_row(" accuracy", Text(accuracy, "bold"), Text("held-out, greedy", "dim"))
        grid.add_row(
            " tokens/s", Text(_rate(row, "tokens_generated"), "bold"), Text(_split(row), "dim")
        )
        grid.add_row(
            " length", Text(_number(row, "response_length_mean", 1)), Text("tokens", "dim")
        )
        return grid

    def _fleet_line(self, status: FleetStatus) -> RenderableType:
        window = f"seeding window open, {status.window_seconds:.1f} s" if status.window_open else ""
        only = reserved_only_dollars(self._rows, reserved_price_per_hour=self._price)
        beside = "" if only is None else f" (reserved alone: about ${only:.4f})"
        ahead = self._rows[-1].get("cost_forecast_dollars") if self._rows else None
        forecast = "" if ahead is None else f" of about ${ahead:.4f}"
        return Text(
            f" {status.finished}/{status.total} responses   {status.joined} joined, "
            f"{status.lost} lost   {total(self._rows, 'requests_migrated'):.0f} migrated, "
            f"{total(self._rows, 'tokens_lost'):.0f} tokens lost\n"
            f" ${status.cost_dollars:.4f}{forecast}{beside}   {window}"
        )


def step_line(row: Mapping[str, Any], num_steps: int) -> str:
    """A step in one line."""
    accuracy = "" if row.get("accuracy") is None else f"  accuracy {row['accuracy']:.3f}"
    return (
        f"step {row['step'] + 1}/{num_steps}  reward {_number(row, 'reward_mean', 3)}{accuracy}  "
        f"length {_number(row, 'response_length_mean', 1)}  "
        f"{_rate(row, 'tokens_generated')} tokens/s ({_split(row)})  "
        f"servers {_number(row, 'instances_mean', 1)} "
        f"+{row.get('instances_joined') or 0} -{row.get('instances_lost') or 0}  "
        f"{row.get('tokens_lost') or 0} tokens lost  ${row.get('cost_dollars') or 0:.4f}  "
        f"{_number(row, 'step_seconds', 2)} s"
    )


def spark(values: list[float]) -> str:
    """Values between 0 and 1 as a line of bars."""
    top = len(BARS) - 1
    return "".join(BARS[round(min(1.0, max(0.0, value)) * top)] for value in values)


def _fleet_table(status: FleetStatus) -> RenderableType:
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for title in ("server", "state", "policy", "runs", "waits", "tokens", "age", "$/h"):
        table.add_column(title, justify="left" if title in ("server", "state") else "right")
    for one in status.instances:
        state = Text(one.state, STATE_STYLES.get(one.state, ""))
        name = Text(one.instance, "bold" if one.reserved else "")
        counts = (str(one.version), str(one.running), str(one.waiting), f"{one.tokens:,}")
        table.add_row(name, state, *counts, _clock(one.seconds), f"{one.price_per_hour:.2f}")
    if not status.instances:
        table.add_row(Text("none", "dim"))
    return table


def _changes(before: FleetStatus | None, status: FleetStatus) -> str:
    joined = status.joined - (before.joined if before else 0)
    lost = status.lost - (before.lost if before else 0)
    if not joined and not lost:
        return ""
    now = sum(1 for one in status.instances if not one.reserved and one.state == "ready")
    return f"  fleet: +{joined} joined, -{lost} lost, {now} ready"


def _number(row: Mapping[str, Any], key: str, digits: int) -> str:
    value = row.get(key)
    return "–" if value is None else f"{value:.{digits}f}"


def _rate(row: Mapping[str, Any], key: str) -> str:
    seconds, tokens = row.get("step_seconds"), row.get(key)
    return "–" if not seconds or tokens is None else f"{tokens / seconds:,.0f}"


def _split(row: Mapping[str, Any]) -> str:
    return (
        f"{_rate(row, 'tokens_reserved')} reserved + {_rate(row, 'tokens_preemptible')} preemptible"
    )


def _one_line(text: str) -> str:
    """Its beginning, with nothing that a terminal would take for more than text."""
    plain = "".join(
        letter if letter.isprintable() else " " for letter in text[: 4 * SAMPLE_LETTERS]
    )
    line = " ".join(plain.split())
    return line if len(line) <= SAMPLE_LETTERS else line[: SAMPLE_LETTERS - 1] + "…"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
