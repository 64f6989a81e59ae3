"""Journal and events are written in a thread: a disk that stands still holds up no lease.

Invariants: entries are written in the order in which they came, and so are lines of events;
`done` is called in the event loop, in that order, once its entries are in the journal or could not
be written. What waits for the disk together is written together, so a slow disk makes writes
longer, not their queue.
"""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rlboost_jax.closing import Closing
from rlboost_jax.manager.events import Record
from rlboost_jax.manager.journal import Entry

Done = Callable[[str], None]  # "" or why the entries could not be written

SLOW_SECONDS: Final = 1.0  # for one write; longer ones are said

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Append:
    entries: Sequence[Entry]
    done: Done


@dataclass(frozen=True, slots=True)
class _Line:
    time: float
    record: Record


class DiskWriter(Closing):
    """To be made, used and closed in one event loop.

    Args:
        append: writes entries to the journal; returns "" or why that failed.
        record: writes a line of events.jsonl.
        fail: called, in the event loop, with a mistake that ended the thread.
    """

    def __init__(
        self,
        append: Callable[[Sequence[Entry]], str],
        record: Callable[[float, Record], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self._append, self._record, self._fail = append, record, fail
        self._loop = asyncio.get_running_loop()
        self._jobs: queue.SimpleQueue[_Append | _Line | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk writer", daemon=True)
        self._thread.start()

    def append(self, entries: Sequence[Entry], done: Done) -> None:
        """Write entries to the journal, then call `done` in the event loop."""
        self._jobs.put(_Append(entries, done))

    def record(self, time: float, record: Record) -> None:
        """Write a line of events.jsonl; nobody waits for it, and the run goes on without it.

        Args:
            time: seconds since the epoch.
        """
        self._jobs.put(_Line(time, record))

    def close(self) -> None:
        """Wait until all is written."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        more = True
        try:
            while more:
                jobs = [self._jobs.get()]
                while not self._jobs.empty():
                    jobs.append(self._jobs.get())
                more = None not in jobs
                self._work([job for job in jobs if job is not None])
        except BaseException as error:  # of whatever kind: the process must not wait for ever
            self._loop.call_soon_threadsafe(self._fail, error)

    def _work(self, jobs: Sequence[_Append | _Line]) -> None:
        """What has come meanwhile. Lines of events wait for the journal, which others wait for."""
        appends = [job for job in jobs if isinstance(job, _Append)]
        if appends:
            began = self._loop.time()
            problem = self._append([entry for job in appends for entry in job.entries])
            if (seconds := self._loop.time() - began) > SLOW_SECONDS:
                log.warning("the disk took %.1f s to take in the journal", seconds)
            for append in appends:
                self._loop.call_soon_threadsafe(append.done, problem)
                problem = ""  # said once
        for line in (job for job in jobs if isinstance(job, _Line)):
            try:
                self._record(line.time, line.record)
            except OSError as error:
                log.error("a line of events.jsonl is lost: %s", error)
