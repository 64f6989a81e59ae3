"""What a manager does in one chosen step, and what servers say they did: spans in a file.

A line of `<workdir>/profile/step_N.jsonl` is a span, with its process; the trainer makes a
trace of them (`observe/profile.py`). The file is of use to that alone: where it cannot be
written, the run goes on without it.
"""

import json
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from rlboost_jax.manager.events import Action, Event, FromServer, FromTrainer, Record, Send
from rlboost_jax.messages import (
    BeginStep,
    Generate,
    Release,
    Renew,
    Span,
    Spans,
    StepTrained,
    TokenBatch,
    Welcome,
)
from rlboost_jax.observe.trace import spans_path

MAX_LINES: Final = 200_000  # of a manager's life: some 30 MB
LINES_AT_ONCE: Final = 512

log = logging.getLogger(__name__)


class StepWatch:
    """To be shown all events with their actions, see `driver.Watch`.

    Args:
        step: whose events are of interest, from its begin to that of another.
    """

    def __init__(self, workdir: Path, step: int) -> None:
        self._path, self._step = spans_path(workdir, step), step
        self._names: dict[int, str] = {}  # stream → instance
        self._begun: float | None = None  # when the step did; None outside of it
        self._window_seconds = 0.0  # of the step's seeding windows that are closed
        self._lines: list[str] = []
        self._left = MAX_LINES

    def __call__(self, event: Event, actions: Sequence[Action], began: float, ended: float) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Welcome):
                self._names[action.stream] = action.message.instance
        match event:
            case FromServer(stream, Spans() as said):
                self._take(self._names.get(stream, "?"), said)
                return
            case FromTrainer(_, BeginStep(step=step)):
                self._begun = began if step == self._step else None
                self._window_seconds = 0.0
                self._flush()
        if self._begun is not None:
            self._keep("manager", self._spans(event, actions, began, ended))
        if isinstance(event, FromTrainer) and isinstance(event.message, StepTrained):
            self._flush()

    def close(self) -> None:
        self._flush()

    def _spans(
        self, event: Event, actions: Sequence[Action], began: float, ended: float
    ) -> Iterable[Span]:
        """Of an event of the step."""
        assert self._begun is not None
        match event:
            case FromServer(stream, TokenBatch() as batch):
                yield _span(
                    "tokens",
                    self._names.get(stream, "?"),
                    began,
                    ended,
                    sequence=batch.sequence,
                    tokens=len(batch.tokens) // 4,
                    running=batch.running,
                    waiting=batch.waiting,
                )
            case FromServer(stream, message) if not isinstance(message, Renew):
                name = type(message).__name__.lower()
                yield _span(name, self._names.get(stream, "?"), began, ended)
            case FromTrainer(_, StepTrained(step=step)):
                yield _span(f"step {step}", "step", self._begun, ended)
        placed = recalled = 0
        for action in actions:
            match action:
                case Send(stream, Generate(requests=requests)):
                    placed += len(requests)
                    name = self._names.get(stream, "?")
                    yield _span("work", name, ended, ended, requests=len(requests))
                case Send(stream, Release(request_ids=ids)):
                    recalled += len(ids) // 4
                    name = self._names.get(stream, "?")
                    yield _span("recall", name, ended, ended, requests=len(ids) // 4)
                case Record(kind, _, instance, detail):
                    if kind == "window_closed":
                        # It may open again, where the last server is lost; seconds are of all.
                        since = began - (detail["seconds"] - self._window_seconds)
                        self._window_seconds = detail["seconds"]
                        reason = detail["reason"]
                        yield _span("open", "seeding window", since, began, reason=reason)
                    label = f"{kind} {instance}".rstrip()
                    yield _span(label, "fleet", ended, ended, **_counts(detail))
        if placed or recalled:
            yield _span("placement", "placement", began, ended, placed=placed, recalled=recalled)

    def _take(self, process: str, said: Spans) -> None:
        self._keep(process, said.spans)
        self._add({"process": process, "clock_error": said.clock_error, "dropped": said.dropped})
        self._flush()

    def _keep(self, process: str, spans: Iterable[Span]) -> None:
        for span in spans:
            self._add({"process": process, **msgspec.structs.asdict(span)})
        if len(self._lines) >= LINES_AT_ONCE:
            self._flush()

    def _add(self, values: dict[str, Any]) -> None:
        if self._left > 0:
            self._left -= 1
            self._lines.append(json.dumps(values) + "\n")

    def _flush(self) -> None:
        """Each time into the file of that name: a trainer that begins anew takes it away."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            self._left = 0
            log.error("step %d is not profiled any further: %s", self._step, error)


def _span(name: str, lane: str, start: float, end: float, **args: int | float | str) -> Span:
    return Span(name=name, lane=lane, start=start, seconds=max(0.0, end - start), args=args)


def _counts(detail: dict[str, Any]) -> dict[str, int | float | str]:
    """What of an event's detail belongs in a trace."""
    return {key: value for key, value in detail.items() if isinstance(value, int | float | str)}
