"""Console of a run: a view that is redrawn, or plain lines.

On a terminal the view (`live_view.py`) shows step, reward, loss, speed, fleet, cost and time left,
four times a second.
Anywhere else (a file, a pipe, `observe.live = False`) each step and each phase is a line.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self, TextIO

from rich.console import Console as RichConsole
from rich.console import ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rlboost_jax.messages import FleetStatus
from rlboost_jax.observe.cost import total
from rlboost_jax.observe.live_view import Shown, number, rate, split, view_lines
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.summary import Summary
from rlboost_jax.platform.closing import Closing
from rlboost_jax.platform.output_relay import Relayed
from rlboost_jax.platform.pulse import PULSE

SAMPLE_LETTERS = 70  # of a prompt and of a response


class _Terminal(RichConsole):
    """Terminal that also knows its width through a relay."""

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
        live: bool = True,
        file: TextIO | None = None,
    ) -> None:
        self._num_steps = num_steps
        self._console = _Terminal(file=file or sys.stdout, highlight=False, soft_wrap=True)
        self._rows: list[Mapping[str, Any]] = []
        self._accuracy: float | None = None
        self._status: FleetStatus | None = None
        self._bill = Bill()
        self._drawn: tuple[int, list[int]] | None = None  # width, and cells of each line
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
        """End the view, which stays on the screen; lines may follow."""
        if self._live:
            self._live.stop()

    def finish(self, summary: Summary) -> None:
        """Do nothing: the caller prints the run's summary."""

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
        """Print a line, above the view if there is one."""
        self._console.print(Text(text))

    def samples(self, rows: Sequence[SampleRow]) -> None:
        """Show the first sample, as far as it fits a line."""
        for row in rows[:1]:
            prompt, response = _one_line(row.prompt_text), _one_line(row.response_text)
            self.note(f"  sample: {prompt} → {response}  ({_facts(row)})")

    def step(self, row: Mapping[str, Any]) -> None:
        """Show a finished step; `row` is its row of metrics."""
        self._rows.append(row)
        self._bill.step(row)
        if row.get("accuracy") is not None:
            self._accuracy = row["accuracy"]
        if not self._live:
            self.note(step_line(row, self._num_steps))

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Show the evaluation of the final parameters."""
        self._bill.step(row)
        if row.get("accuracy") is None:
            return
        self._accuracy = row["accuracy"]
        self.note(f"evaluation of the final parameters: accuracy {row['accuracy']:.3f}")

    def fleet(self, status: FleetStatus) -> None:
        """Show the fleet's status. Without a view, arrivals and losses are printed as lines."""
        before, self._status = self._status, status
        self._bill.fleet(status.cost_dollars)
        caught = status.quarantined - (before.quarantined if before else 0)
        if caught > 0:
            self.note(_quarantine(caught))
        if not self._live and (changes := _changes(before, status)):
            self.note(changes)

    def earlier(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add the rows of steps that were done before this start."""
        self._rows = [*rows, *self._rows]
        self._bill.earlier(rows)
        for row in rows:
            if row.get("accuracy") is not None:
                self._accuracy = row["accuracy"]

    def _view(self) -> RenderableType:
        """Render the view. Called before each drawing: the terminal's size may have changed."""
        now, (width, height) = time.monotonic(), self._console.size
        if self._drawn and self._drawn[0] > width:
            self._console.file.write(_over(self._drawn[1], width))
        shown = Shown(
            num_steps=self._num_steps,
            seconds=now - self._began,
            rows=self._rows,
            accuracy=self._accuracy,
            status=self._status,
            dollars=self._bill.dollars,
            phases=[(text, now - began) for text, began in tuple(self._phases)],
        )
        lines = view_lines(shown, width=width, height=height)
        self._drawn = width, [line.cell_len for line in lines]
        return Group(*lines)


class Bill:
    """Dollars as the rows have them, and what the manager has counted since the last row.

    The manager counts from its own start; a run may have had others before.
    """

    def __init__(self) -> None:
        self._paid = 0.0  # by rows
        self._counted: float | None = None  # by the manager, now
        self._until = 0.0  # of these, what the rows have

    @property
    def dollars(self) -> float:
        since = 0.0 if self._counted is None else max(0.0, self._counted - self._until)
        return self._paid + since

    def earlier(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._paid += total(rows, "cost_dollars")

    def step(self, row: Mapping[str, Any]) -> None:
        self._paid += row.get("cost_dollars") or 0.0
        self._until = self._counted or 0.0

    def fleet(self, counted: float) -> None:
        if self._counted is None or counted < self._counted:  # the first word of a manager
            self._until = counted
        self._counted = counted


def _over(cells: Sequence[int], width: int) -> str:
    """Control sequence to erase a view that a narrower terminal has wrapped."""
    more = sum(max(1, -(-each // width)) for each in cells) - len(cells)
    return f"\x1b[{more}A\r\x1b[J" if more else ""


def step_line(row: Mapping[str, Any], num_steps: int) -> str:
    """Summary of a step in one line."""
    accuracy = "" if row.get("accuracy") is None else f"  accuracy {row['accuracy']:.3f}"
    return (
        f"step {row['step']} ({row['step'] + 1}/{num_steps})  "
        f"reward {number(row, 'reward_mean', 3)}{accuracy}  "
        f"length {number(row, 'response_length_mean', 1)}  "
        f"{rate(row, 'tokens_generated')} tokens/s ({split(row)})  "
        f"servers {number(row, 'instances_mean', 1)} "
        f"+{row.get('instances_joined') or 0} -{row.get('instances_lost') or 0}  "
        f"{row.get('tokens_lost') or 0} tokens lost  {_untrained(row)}{_episodes(row)}"
        f"{_paid(row)}"
        f"{number(row, 'step_seconds', 2)} s"
    )


def _paid(row: Mapping[str, Any]) -> str:
    """Return a step's dollars, or nothing where nothing is billed."""
    return f"${row['cost_dollars']:.4f}  " if row.get("cost_dollars") else ""


def _untrained(row: Mapping[str, Any]) -> str:
    """Text on responses of a step that have no part in its update; "" if there are none."""
    said = ""
    if row.get("episodes_left_out"):
        said += f"{row['episodes_left_out']} left out  "
    if row.get("groups_filled_up"):
        said += f"{row['groups_filled_up']} groups of equal rewards not trained  "
    return said


def _episodes(row: Mapping[str, Any]) -> str:
    """Text on the episodes of a step; "" without an environment."""
    if row.get("turns_mean") is None:
        return ""
    said = f"turns {number(row, 'turns_mean', 1)}  "
    if row.get("tool_calls"):
        said += f"{row['tool_calls']} tool calls ({row.get('tool_failures') or 0} failed)  "
    return said


def _facts(row: SampleRow) -> str:
    """Short text on a sample."""
    turns = [part for part in row.turns if part.sampled]
    calls = sum(len(part.calls) for part in turns)
    facts = [f"left out: {_one_line(row.left_out)}" if row.left_out else f"reward {row.reward:.3g}"]
    if len(turns) > 1:
        facts.append(f"{len(turns)} turns")
    if calls:
        facts.append(f"{calls} tool call{'s' * (calls > 1)}")
    return ", ".join(facts)


def _changes(before: FleetStatus | None, status: FleetStatus) -> str:
    joined = status.joined - (before.joined if before else 0)
    lost = status.lost - (before.lost if before else 0)
    if not joined and not lost:
        return ""
    now = sum(1 for one in status.instances if not one.reserved and one.state == "ready")
    return f"  fleet: +{joined} joined, -{lost} lost, {now} ready"


def _quarantine(caught: int) -> str:
    servers = "1 server is" if caught == 1 else f"{caught} servers are"
    return (
        f"  fleet: {servers} quarantined, since tokens or scores were wrong; "
        "other servers repeat the work, and events.jsonl has the names"
    )


def _one_line(text: str) -> str:
    """Beginning of a text, without anything that a terminal would interpret."""
    plain = "".join(
        letter if letter.isprintable() else " " for letter in text[: 4 * SAMPLE_LETTERS]
    )
    line = " ".join(plain.split())
    return line if len(line) <= SAMPLE_LETTERS else line[: SAMPLE_LETTERS - 1] + "…"
