"""A thread for work on a disk, watched, so that nobody waits for ever for a disk that hangs.

A disk that does not answer holds a thread in a system call, where nothing reaches it. Work that
gets nothing done for too long is therefore abandoned: its waiter gets `DiskStalled`.

Invariants:
- every future of `submit` ends: with a result, with an error, or with `DiskStalled`;
- abandoned work goes no further than the part that it is in, also if the disk answers again;
- time counts as the watching thread sees it, by a clock that nobody sets. Of the time in which the
  process was stopped, or its host slept, at most `MOST_SECONDS` count.

TensorStore waits by the wall clock: if that is set back, it may do nothing until the clock has
caught up. The line on work that was abandoned says so.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakSet

from rlboost_jax.platform.closing import Closing

Result = TypeVar("Result")

STALL_SECONDS: Final = 600.0  # without progress; servers of network file systems start in less
LOOK_SECONDS: Final = 1.0  # between two looks at all threads
MOST_SECONDS: Final = 2.0  # that count between two looks
LEAST_BACK_SECONDS: Final = 1.0  # that count as the wall clock's being set back
SLOW_DISK: Final = 10**7  # bytes in a second, which may all be seen at their end only


class DiskStalled(RuntimeError):
    """Work on a disk made no progress for too long and was abandoned; its thread may never end."""


class ThreadClosed(RuntimeError):
    """The thread accepts no more work."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """One call that was submitted.

    Attributes:
        what: its name for people.
        folder: where it works, for people.
        size_bytes: how much it writes or reads.
    """

    call: Callable[[], Any]
    end: Future[Any]
    what: str
    folder: Path
    size_bytes: int


class DiskThread(Closing):
    """A thread that does one call after the other, in the order of submission."""

    def __init__(self, name: str, *, stall_seconds: float = STALL_SECONDS) -> None:
        """Start the thread, which is watched from now on.

        Args:
            stall_seconds: how long work may get nothing done, besides the time that a slow disk
                takes for its bytes.
        """
        self._stall_seconds = stall_seconds
        self._changed = threading.Condition()  # of all below
        self._ahead: deque[_Work] = deque()  # the first is being done
        self._closed = False
        self._signs = self._seen = 0  # given so far; at the last look
        self._part, self._still = "", 0.0  # what is being done; seconds without a sign
        self._back = 0.0  # seconds by which the wall clock was set back since the last sign
        self._stalled: DiskStalled | None = None
        threading.Thread(target=self._run, name=name, daemon=True).start()
        _watch(self)

    def submit(
        self, call: Callable[[], Result], what: str, folder: Path, *, size_bytes: int = 0
    ) -> Future[Result]:
        """Submit a call, to run after all calls submitted before.

        Args:
            what: a name for it, such as "checkpoint 7".
            folder: where it works.
            size_bytes: how much it writes or reads.

        Raises:
            DiskStalled: something before it was abandoned.
            ThreadClosed
        """
        end: Future[Result] = Future()
        end.set_running_or_notify_cancel()  # nobody can take it back
        with self._changed:
            if self._stalled is not None:
                raise self._stalled
            if self._closed:
                raise ThreadClosed(f"{what} comes too late")
            self._ahead.append(
                _Work(call=call, end=end, what=what, folder=folder, size_bytes=size_bytes)
            )
            self._changed.notify_all()
        return end

    def sign(self, part: str | None = None) -> None:
        """Record progress. To be called by the work itself.

        Args:
            part: what it does next; None: the same as before.

        Raises:
            DiskStalled: it was abandoned, and must change nothing any more.
        """
        with self._changed:
            if self._stalled is not None:
                raise self._stalled
            self._signs += 1
            self._part = self._part if part is None else part

    @property
    def signs(self) -> int:
        """Number of signs of progress so far."""
        return self._signs

    @property
    def stalled(self) -> DiskStalled | None:
        """Error that ended this thread's work; None while it works."""
        return self._stalled

    def shown(self) -> str:
        """Current work, for people; "" where there is none."""
        with self._changed:
            if not self._ahead:
                return ""
            work, part = self._ahead[0], f" {self._part}" if self._part else ""
            return f"{work.what} in {work.folder}:{part} for {self._still:.0f} s"

    def look(self, seconds: float, back: float = 0.0) -> None:
        """Abandon all work if it has made no progress for too long.

        Args:
            seconds: since the last look.
            back: by how much the wall clock was set back since, seconds.
        """
        with self._changed:
            if self._signs != self._seen or not self._ahead:
                self._seen, self._still, self._back = self._signs, 0.0, 0.0
                return
            self._still += min(seconds, MOST_SECONDS)
            self._back += back
            work = self._ahead[0]
            if self._still < self._stall_seconds + work.size_bytes / SLOW_DISK:
                return
            self._stalled = DiskStalled(_line(work, self._part, self._still, self._back))
            abandoned = tuple(self._ahead)
            self._ahead.clear()
            self._changed.notify_all()
        for each in abandoned:
            each.end.set_exception(self._stalled)
        for listener in tuple(_LISTENERS):
            listener(self._stalled)

    def close(self) -> None:
        """Return once all submitted work is done or abandoned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._ahead)

    def _run(self) -> None:
        while (work := self._next()) is not None:
            result, failure = None, None
            try:
                result = work.call()
            except BaseException as error:  # whatever it is, it is raised where it is waited for
                failure = error
            with self._changed:
                if self._stalled is not None:
                    return  # its future has ended long ago
                self._signs += 1
                self._ahead.popleft()
                self._changed.notify_all()
            if failure is not None:
                work.end.set_exception(failure)
            else:
                work.end.set_result(result)

    def _next(self) -> _Work | None:
        """Wait for the next work; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ahead or self._closed or self._stalled)
            if self._stalled is not None or not self._ahead:
                return None
            self._part = ""
            return self._ahead[0]


def listen(listener: Callable[[DiskStalled], None]) -> None:
    """Call `listener`, from the watching thread, with each stall in this process."""
    _LISTENERS.append(listener)


def _line(work: _Work, part: str, seconds: float, back: float) -> str:
    cause = "does its disk answer?"
    if back:
        cause = f"the host's clock was set back by {back:,.0f} s, which TensorStore waits for."
    return (
        f"{work.what} got nothing done for {seconds:.0f} s{f' ({part})' if part else ''} in "
        f"{work.folder}: {cause} The same command goes on from the newest durable "
        "checkpoint; checkpoint.disk_seconds is how long a disk is waited for"
    )


_LISTENERS: Final[list[Callable[[DiskStalled], None]]] = []
_WATCHED: Final[WeakSet[DiskThread]] = WeakSet()
_STARTING: Final = threading.Lock()
_watching = False


def _watch(thread: DiskThread) -> None:
    """Have a thread watched; the first one starts this process's watching thread."""
    global _watching
    with _STARTING:
        _WATCHED.add(thread)
        if not _watching:
            threading.Thread(target=_look_for_ever, name="watch disks", daemon=True).start()
            _watching = True


def look_at_all(seconds: float, back: float = 0.0) -> None:
    """Look once at all threads.

    Args:
        seconds: since the last.
        back: by how much the wall clock was set back since, seconds.
    """
    with _STARTING:
        watched = tuple(_WATCHED)
    for each in watched:
        each.look(seconds, back)


def set_back(before: float, now: float) -> float:
    """Seconds by which the wall clock was set back; 0 where it only drifts.

    Args:
        before, now: by how much it was and is ahead of a clock that nobody sets.
    """
    return before - now if before - now > LEAST_BACK_SECONDS else 0.0


def _look_for_ever() -> None:
    """Look at all threads for ever, without disks or locks held while waiting."""
    before, ahead = time.monotonic(), time.time() - time.monotonic()
    while True:
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        was_ahead, ahead = ahead, time.time() - now
        look_at_all(now - before, set_back(was_ahead, ahead))
        before = now
