"""A tracker that cannot harm the run: it lives in a thread of its own, and may fail there."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.summary import Summary
from rlboost_jax.observe.tracker import Tracker

MAX_WAITING: Final = 1_000  # calls; a tracker this far behind is abandoned
CLOSE_SECONDS: Final = 60.0  # for what still waits, at the end of a run
REASON_LETTERS: Final = 300

Call = Callable[[Tracker], None]


class IsolatedTracker:
    """A tracker behind a queue. No method raises, and only `close` waits for it.

    Any exception of it, from its construction to its end, is reported once; then it is closed and
    called no more.

    Args:
        make: makes the tracker, in its thread.
        note: shows a person a line; called from any thread.
        close_seconds: how long `close` waits for it.
        most_waiting: calls; one this far behind is left out.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Tracker],
        *,
        note: Callable[[str], None],
        close_seconds: float = CLOSE_SECONDS,
        most_waiting: int = MAX_WAITING,
    ) -> None:
        self._most_waiting = most_waiting
        self._name, self._note, self._close_seconds = name, note, close_seconds
        self._calls: queue.Queue[Call | None] = queue.Queue(most_waiting)
        self._abandoned = threading.Event()
        self._reason_said = threading.Lock()  # never released: taken by the first
        self._thread = threading.Thread(target=self._run, args=[make], name=name, daemon=True)
        self._thread.start()

    def samples(self, rows: Sequence[SampleRow]) -> None:
        self._put(lambda tracker: tracker.samples(rows))

    def step(self, row: Mapping[str, Any]) -> None:
        self._put(lambda tracker: tracker.step(row))

    def evaluated(self, row: Mapping[str, Any]) -> None:
        self._put(lambda tracker: tracker.evaluated(row))

    def finish(self, summary: Summary) -> None:
        self._put(lambda tracker: tracker.finish(summary))

    def close(self) -> None:
        """Wait until the tracker has handled all calls and is closed, or has failed.

        At most `close_seconds`.
        """
        self._put(None)
        self._thread.join(self._close_seconds)
        if self._thread.is_alive():
            self._abandon(f"it was not done {self._close_seconds:g} s after the end")

    def _put(self, call: Call | None) -> None:
        if self._abandoned.is_set():
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            self._abandon(f"it is {self._most_waiting} calls behind")

    def _run(self, make: Callable[[], Tracker]) -> None:
        try:
            tracker = make()
            try:
                while (call := self._calls.get()) is not None and not self._abandoned.is_set():
                    call(tracker)
            except BaseException as error:
                self._fail(error)  # said before it is closed, which may take its time
            tracker.close()
        except BaseException as error:  # another's code: of whatever kind, the run goes on
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._abandon(f"{type(error).__name__}: {error}")

    def _abandon(self, reason: str) -> None:
        if self._reason_said.acquire(blocking=False):
            self._abandoned.set()
            line = " ".join(reason.split())[:REASON_LETTERS]
            self._note(f"{self._name} is left out from here on, the run goes on: {line}")
