"""Unfinished saves that were handed to a thread, and bounded waits for them.

A wait has an end because the thread is watched (`DiskThread`). While one takes long a line says
what is waited for; as long as the thread gets something done so does this process (`pulse.py`).
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from rlboost_jax.platform.disk_thread import DiskThread
from rlboost_jax.platform.pulse import PULSE

T = TypeVar("T")

LOOK_SECONDS: Final = 1.0  # between two looks at a save that is waited for
NOTE_SECONDS: Final = 30.0  # until a line says what is waited for; then after twice as long


@dataclass(frozen=True, kw_only=True)
class _PendingSave:
    """A save that is not finished.

    Attributes:
        step: of the checkpoint, or of the newest before other work.
        size_bytes: of its copies in memory.
    """

    step: int
    size_bytes: int
    end: Future[None]


class Backlog:
    """Pending saves of one thread; an error in it is raised once, in the thread that waits.

    Args:
        writer: does the saves.
        folder: where it does.
        note: shows a line to people.
    """

    def __init__(self, writer: DiskThread, folder: Path, note: Callable[[str], None]) -> None:
        self._writer, self._folder, self._note = writer, folder, note
        self._saves: deque[_PendingSave] = deque()

    def add(self, call: Callable[[], None], what: str, *, step: int, size_bytes: int) -> None:
        """Queue a save, or other work that follows the saves so far."""
        end = self._writer.submit(call, what, self._folder, size_bytes=size_bytes)
        self._saves.append(_PendingSave(step=step, size_bytes=size_bytes, end=end))

    def done(self, call: Callable[[], T], what: str, *, size_bytes: int) -> T:
        """Run a call in the thread and wait for its result."""
        return self._end_of(self._writer.submit(call, what, self._folder, size_bytes=size_bytes))

    def wait(self, up_to: int | None) -> None:
        """Wait for all saves up to this step; None: for all.

        Raises:
            DiskStalled, or what a save raised.
        """
        while self._saves and (up_to is None or self._saves[0].step <= up_to):
            self._end_of(self._saves.popleft().end)

    def make_room(self, left_bytes: int) -> None:
        """Wait for the oldest saves until the rest take at most `left_bytes` of memory.

        Raises:
            DiskStalled, or what a save raised.
        """
        while self._saves and (
            self._saves[0].end.done() or sum(each.size_bytes for each in self._saves) > left_bytes
        ):
            self._end_of(self._saves.popleft().end)

    def _end_of(self, end: Future[T]) -> T:
        signs, looks, next_note = -1, 0, NOTE_SECONDS
        while not wait([end], LOOK_SECONDS).done:
            if signs != (signs := self._writer.signs):
                PULSE.beat()
            looks += 1
            if looks * LOOK_SECONDS >= next_note:
                next_note *= 2
                self._note(f"waiting until it is durable: {self._writer.shown()}")
        return end.result()
