"""Spans of a manager in one chosen step, together with those that servers report."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.manager.events import Action, Event, FromServer, FromTrainer, Record, Send
from rlboost_jax.manager.service.span_file import MAX_LINES, SpanFile
from rlboost_jax.messages import (
    BatchTrained,
    BeginBatch,
    Generate,
    Release,
    Renew,
    Span,
    Spans,
    TokenBatch,
    Welcome,
)
from rlboost_jax.observe.chrome_trace import Doubtful


class StepTracer:
    """Observer that traces one step, see `manager_driver.Watch`.

    Args:
        step: whose events are of interest, from its begin to that of another; with a lag, while it
            is the oldest that is open.
        max_lines: that are written of it.
    """

    def __init__(self, workdir: Path, step: int, max_lines: int = MAX_LINES) -> None:
        self._file, self._step = SpanFile(workdir, step, max_lines), step
        self._newest = -1  # step that has begun and is not ahead of another
        self._trained = -1  # the step last reported as trained
        self._names: dict[int, str] = {}  # stream → instance
        self._begun: float | None = None  # when the step did; None outside of it
        self._window_seconds = 0.0  # of the step's seeding windows that are closed

    def __call__(self, event: Event, actions: Sequence[Action], began: float, ended: float) -> None:
        for action in actions:
            if isinstance(action, Send) and isinstance(action.message, Welcome):
                self._names[action.stream] = action.message.instance
        match event:
            case FromServer(stream, Spans() as said):
                if self._newest <= self._step + 1:  # with the one after, the trace is made
                    process = self._names.get(stream, "?")
                    self._file.add(process, said.spans)
                    doubtful = Doubtful(clock_error=said.clock_error, dropped=said.dropped)
                    self._file.doubt(process, doubtful)
                    if not self._file.full:  # a server may say this endlessly
                        self._file.flush()
                return
            case FromTrainer(_, BeginBatch() as begin) if not self._ahead(begin):
                self._begin(begin.batch, began)
        if self._begun is not None:
            self._file.add("manager", self._spans(event, actions, began, ended))
        if isinstance(event, FromTrainer) and isinstance(event.message, BatchTrained):
            self._trained = event.message.batch
            self._file.flush()
            for action in actions:
                if isinstance(action, Record) and action.kind == "begun":
                    self._begin(action.step, ended)

    def close(self) -> None:
        self._file.flush()

    def _ahead(self, begin: BeginBatch) -> bool:
        """Whether a batch is begun while an earlier one is still being worked on."""
        later = begin.version < begin.batch and begin.batch > self._newest
        return later and self._newest not in (-1, self._trained)

    def _begin(self, step: int, began: float) -> None:
        self._newest = step
        self._begun = began if step == self._step else None
        self._window_seconds = 0.0
        if self._begun is None:
            self._file.flush()
        else:
            self._file.begin()

    def _spans(
        self, event: Event, actions: Sequence[Action], began: float, ended: float
    ) -> Iterable[Span]:
        """Spans of one event of the step."""
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
            case FromTrainer(_, BatchTrained(batch=step)):
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


def _span(name: str, lane: str, start: float, end: float, **args: int | float | str) -> Span:
    return Span(name=name, lane=lane, start=start, seconds=max(0.0, end - start), args=args)


def _counts(detail: dict[str, Any]) -> dict[str, int | float | str]:
    """Part of an event's detail that belongs in a trace."""
    return {key: value for key, value in detail.items() if isinstance(value, int | float | str)}
