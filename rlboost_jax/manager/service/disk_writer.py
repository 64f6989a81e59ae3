"""Writer thread for journal and events: a stalled disk delays no lease.

Invariants: entries are written in the order in which they came, and so are lines of events;
`done` is called in the event loop, in that order, once its entries are in the journal or could not
be written. What waits for the disk together is written together, so a slow disk makes writes
longer, not their queue. Lines of events only inform: beyond `MAX_LINES` that wait they are dropped,
and a line says how many.
"""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from rlboost_jax.manager.events import Record
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.platform.closing import Closing

Done = Callable[[str], None]  # "" or why the entries could not be written

SLOW_SECONDS: Final = 1.0  # for one write; longer ones are said
MAX_LINES: Final = 10_000  # some MB: hours of a disk that does not answer

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
    """Thread that writes the journal and the events. Made, used and closed in one event loop.

    Args:
        append: writes entries to the journal; returns "" or why that failed.
        record: writes a line of events.jsonl.
        fail: called, in the event loop, with a mistake that ended the thread.
        max_lines: that may wait.
    """

    def __init__(
        self,
        append: Callable[[Sequence[Entry]], str],
        record: Callable[[float, Record], None],
        fail: Callable[[BaseException], None],
        max_lines: int = MAX_LINES,
    ) -> None:
        self._append, self._record, self._fail = append, record, fail
        self._loop = asyncio.get_running_loop()
        self._max_lines = max_lines
        self._lines = threading.Lock()  # of the two below
        self._num_lines = self._dropped = 0  # that wait; that were dropped since one was written
        self._jobs: queue.SimpleQueue[_Append | _Line | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="disk writer", daemon=True)
        self._thread.start()

    def append(self, entries: Sequence[Entry], done: Done) -> None:
        """Write entries to the journal, then call `done` in the event loop."""
        self._jobs.put(_Append(entries, done))

    def record(self, moment: float, record: Record) -> None:
        """Queue a line of events.jsonl; nothing waits for it, and losing it harms no run.

        Args:
            moment: seconds since the epoch.
        """
        with self._lines:
            if self._num_lines >= self._max_lines:
                self._dropped += 1
                return
            self._num_lines += 1
        self._jobs.put(_Line(moment, record))

    def close(self) -> None:
        """Wait until everything is written."""
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
        """Write the queued jobs. Lines of events come after the journal, which others wait for."""
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
            self._write(line)
            with self._lines:
                self._num_lines -= 1
                dropped, self._dropped = self._dropped, 0
            if dropped:
                step, detail = line.record.step, {"lines": dropped}
                self._write(_Line(time.time(), Record("dropped", step, "", detail)))

    def _write(self, line: _Line) -> None:
        try:
            self._record(line.time, line.record)
        except OSError as error:
            log.error("a line of events.jsonl is lost: %s", error)
