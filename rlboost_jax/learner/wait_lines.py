"""Console lines on what a step waits for, so that a long wait does not look like a hang.

The cause follows from the state of the step alone (`cause_of`): while the learner computes, the
step waits for it, and not for rewards.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, Protocol, TypeVar, assert_never, runtime_checkable

LOOK_SECONDS = 1.0  # between two looks
PATIENCE_SECONDS = 10.0  # that one thing is waited for before anything is said
QUIET_SECONDS: Final = 60.0  # the same where responses are generated, which may take long
EVERY_SECONDS = 30.0  # between two lines

Given = ParamSpec("Given")
Made = TypeVar("Made")


@runtime_checkable
class Judged(Protocol):
    """Part of `StepCollector` that is used here; read while another thread changes it."""

    @property
    def num_taken(self) -> int: ...

    @property
    def num_expected(self) -> int: ...

    @property
    def unjudged(self) -> tuple[int, ...]: ...  # responses, those that wait longest first

    @property
    def unscored(self) -> tuple[int, ...]: ...  # likewise, of those that servers score


class LearnerWork:
    """The learner's present computation, for readers in other threads.

    Attributes:
        name: such as "micro-batch 2"; "" while it computes nothing.
    """

    def __init__(self) -> None:
        self.name = ""

    def named(
        self, name: Callable[Given, str], function: Callable[Given, Made]
    ) -> Callable[Given, Made]:
        """Wrap a function so that its name is shown while it runs.

        Args:
            name: made of the function's arguments.
        """

        def run(*args: Given.args, **kwargs: Given.kwargs) -> Made:
            self.name = name(*args, **kwargs)
            try:
                return function(*args, **kwargs)
            finally:
                self.name = ""

        return run


@dataclass(frozen=True)
class Computing:
    """The step waits for the learner, which computes."""

    what: str


@dataclass(frozen=True)
class Judging:
    """The step waits for rewards of some responses."""

    samples: tuple[int, ...]


@dataclass(frozen=True)
class ScoredByServers:
    """Servers have not scored some responses for a teacher."""

    samples: tuple[int, ...]


@dataclass(frozen=True)
class Publishing:
    """The step waits for the version that servers need, which is not on disk yet."""

    version: int


@dataclass(frozen=True)
class Generating:
    """The step waits for responses."""

    arrived: int


Cause = Computing | Judging | ScoredByServers | Publishing | Generating


def cause_of(collector: Judged, *, computing: str, unpublished: int | None) -> Cause | None:
    """Return what holds a step up, or None if everything is there.

    Args:
        computing: what the learner computes; "" for nothing.
        unpublished: the version that is being written for servers; None if it has been.
    """
    if computing:
        return Computing(computing)
    if waiting := collector.unjudged:
        return Judging(waiting)
    if waiting := collector.unscored:
        return ScoredByServers(waiting)
    if collector.num_taken == collector.num_expected:
        return None
    if unpublished is not None:
        return Publishing(unpublished)
    return Generating(collector.num_taken)


class WaitLines:
    """Lines about what a step waits for, from repeated looks at it.

    Args:
        name: of the step, such as "step 3".
        work: what the learner computes.
        unpublished: see `cause_of`.
    """

    def __init__(
        self,
        name: str,
        collector: Judged,
        *,
        work: LearnerWork,
        unpublished: Callable[[], int | None] = lambda: None,
        every: float = EVERY_SECONDS,
    ) -> None:
        self._name, self._collector, self._every = name, collector, every
        self._work, self._unpublished = work, unpublished
        self._first_seen: dict[Any, float] = {}  # a cause, or a response without reward → when
        self._said_at: float | None = None

    def look(self, now: float) -> str:
        """Return a line, or "" if none is due.

        Args:
            now: seconds; of any clock that only goes forward.
        """
        cause = cause_of(
            self._collector, computing=self._work.name, unpublished=self._unpublished()
        )
        seen = cause.samples if isinstance(cause, Judging | ScoredByServers) else (cause,)
        self._first_seen = {each: self._first_seen.get(each, now) for each in seen}
        longest = now - min(self._first_seen.values())
        recent = self._said_at is not None and now - self._said_at < self._every
        patience = QUIET_SECONDS if isinstance(cause, Generating) else PATIENCE_SECONDS
        if cause is None or longest < patience or recent:
            return ""
        self._said_at = now
        return f"  {self._name}: {self._text(cause, longest)}"

    def _text(self, cause: Cause, seconds: float) -> str:
        arrived, expected = self._collector.num_taken, self._collector.num_expected
        match cause:
            case Computing(what):
                return (
                    f"the learner has been computing {what} for {seconds:.0f} s; "
                    f"{arrived} of {expected} responses have come"
                )
            case Judging(samples):
                return (
                    f"{len(samples)} of {arrived} responses that have come wait for their reward, "
                    f"one of them for {seconds:.0f} s (rewards.workers, rewards.time_limit_seconds)"
                )
            case ScoredByServers(samples):
                return (
                    f"{len(samples)} of {arrived} responses that have come wait for a teacher's "
                    f"scores, one of them for {seconds:.0f} s; scoring takes two servers that hold "
                    "the teacher, and a third if they differ (distillation.scored_by)"
                )
            case Publishing(version):
                return (
                    f"version {version} has been in writing for {seconds:.0f} s, and servers wait "
                    "for it"
                )
            case Generating():
                return f"no response has come for {seconds:.0f} s; {arrived} of {expected} are here"
            case _:
                assert_never(cause)


@contextmanager
def shown(lines: WaitLines, note: Callable[[str], None]) -> Iterator[None]:
    """Look every second, in a thread of its own, for as long as the block runs."""
    over = threading.Event()

    def watch() -> None:
        seconds = 0.0
        while not over.wait(LOOK_SECONDS):
            seconds += LOOK_SECONDS
            if line := lines.look(seconds):
                note(line)

    threading.Thread(target=watch, name="wait lines", daemon=True).start()
    try:
        yield
    finally:
        over.set()  # not awaited: a note that hangs must not hold the step up
