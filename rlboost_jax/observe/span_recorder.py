"""Spans of a process's work while one chosen step is profiled.

A process records spans on its own clock, `time.monotonic`, which is also that of its asyncio
loops. The process that hands them on puts them on the manager's clock (`observe/clocks.py`).
"""

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from rlboost_jax.messages import Span
from rlboost_jax.platform.pulse import PULSE

LEARNER_LANE: Final = "learner"  # of the trainer's main thread
ENGINE_LANE: Final = "engine"  # of dispatches, where a process has one engine
MAX_KEPT: Final = 20_000  # spans of a process that nobody has taken yet: 100 bytes each

Argument = int | float | str

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class Recorder:
    """Spans of one process. All methods may be called from any thread.

    Args:
        step: that is profiled; 0: none, and nothing is ever recorded.
    """

    def __init__(self, step: int = 0, *, limit: int = MAX_KEPT) -> None:
        self._step, self._limit = step, limit
        self._at = -1
        self._lock = threading.Lock()  # of the two below
        self._spans: list[Span] = []
        self._dropped = 0

    @property
    def on(self) -> bool:
        """Whether this process works on the step that is profiled."""
        return self._step > 0 and self._at == self._step

    def at(self, step: int) -> None:
        """Note the step that this process works on now."""
        self._at = step

    def near(self, version: int) -> bool:
        """Whether a policy version belongs to the step: it is sampled from, or comes of it."""
        return self._step > 0 and version in (self._step, self._step + 1)

    def add(self, name: str, lane: str, start: float, end: float, **args: Argument) -> None:
        """Keep a span whether `on` or not; those beyond the limit are counted only.

        Args:
            lane: thread, or subject; spans of a lane lie within one another or apart.
            start, end: of `time.monotonic`, seconds.
        """
        span = Span(name=name, lane=lane, start=start, seconds=max(0.0, end - start), args=args)
        with self._lock:
            if len(self._spans) < self._limit:
                self._spans.append(span)
            else:
                self._dropped += 1

    @contextlib.contextmanager
    def span(
        self, name: str, lane: str, *, when: bool | None = None, **args: Argument
    ) -> Iterator[None]:
        """Record what is done within, however it ends. It is a phase of this process, too.

        Args:
            when: whether to; None: if it is `on` as this begins.
        """
        if not (self.on if when is None else when):
            with PULSE.phase(name):
                yield
            return
        start = time.monotonic()
        try:
            with PULSE.phase(name):
                yield
        finally:
            self.add(name, lane, start, time.monotonic(), **args)

    def timed(self, name: str, lane: str, function: Callable[P, R]) -> Callable[P, R]:
        """Wrap `function` so that each call is a span."""

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with self.span(name, lane):
                return function(*args, **kwargs)

        return call

    def take(self) -> tuple[list[Span], int]:
        """Spans recorded since the last call, and the number that there was no room for."""
        with self._lock:
            spans, dropped = self._spans, self._dropped
            self._spans, self._dropped = [], 0
        return spans, dropped


def traced(
    name: str, lane: str
) -> Callable[[Callable[Concatenate[S, P], R]], Callable[Concatenate[S, P], R]]:
    """Decorator for methods of objects that have a Recorder as `_spans`."""

    def decorated(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
        @functools.wraps(method)
        def call(self: S, *args: P.args, **kwargs: P.kwargs) -> R:
            spans: Any = self
            with spans._spans.span(name, lane):
                return method(self, *args, **kwargs)

        return call

    return decorated
