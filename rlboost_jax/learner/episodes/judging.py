"""Shows that rewards are being computed while a step waits for them: else it looks like a hang."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

LOOK_SECONDS = 1.0  # between two looks
PATIENCE_SECONDS = 10.0  # that a response waits for its reward before anything is said
EVERY_SECONDS = 30.0  # between two lines


@runtime_checkable
class Judged(Protocol):
    """What is needed of `StepCollector`; read while another thread changes it."""

    @property
    def num_taken(self) -> int: ...

    @property
    def unjudged(self) -> tuple[int, ...]: ...  # responses, those that wait longest first


class JudgingLines:
    """Lines about responses that wait for their reward, from looks at them in time.

    Args:
        name: of what is judged, such as "step 3".
    """

    def __init__(self, name: str, collector: Judged, *, every: float = EVERY_SECONDS) -> None:
        self._name, self._collector, self._every = name, collector, every
        self._first_seen: dict[int, float] = {}  # response → when
        self._said_at: float | None = None

    def look(self, now: float) -> str:
        """A line, or "" where there is nothing to say.

        Args:
            now: seconds; of any clock that only goes forward.
        """
        waiting = self._collector.unjudged
        self._first_seen = {sample: self._first_seen.get(sample, now) for sample in waiting}
        longest = max((now - since for since in self._first_seen.values()), default=0.0)
        recent = self._said_at is not None and now - self._said_at < self._every
        if longest < PATIENCE_SECONDS or recent:
            return ""
        self._said_at = now
        arrived = self._collector.num_taken
        return (
            f"  {self._name}: {len(waiting)} of {arrived} responses that have come wait for their "
            f"reward, one of them for {longest:.0f} s (rewards.workers, "
            "rewards.time_limit_seconds)"
        )


@contextmanager
def shown(lines: JudgingLines, note: Callable[[str], None]) -> Iterator[None]:
    """Look every second, in a thread of its own, for as long as the block runs."""
    over = threading.Event()

    def watch() -> None:
        seconds = 0.0
        while not over.wait(LOOK_SECONDS):
            seconds += LOOK_SECONDS
            if line := lines.look(seconds):
                note(line)

    threading.Thread(target=watch, name="judging", daemon=True).start()
    try:
        yield
    finally:
        over.set()  # not awaited: a note that hangs must not hold the step up
