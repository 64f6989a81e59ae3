"""A reward worker whose jobs wait side by side: each still runs in a process of its own.

A call has the limits that it has with one job at a time: it is killed after its time with all that
it started, its memory is its own, and it sees nothing of the others. The trainer, in
`concurrent.py`, decides how many there are.
"""

import os
import select
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from rlboost_jax.rewards.calls import (
    NO_OUTCOME,
    children,
    forked,
    how_it_ended,
    most_bytes,
    took_longer,
)
from rlboost_jax.rewards.frames import (
    Found,
    FrameTooLong,
    Incoming,
    Job,
    Outcomes,
    Returned,
    Setup,
    all_failed,
    frame,
)
from rlboost_jax.rewards.functions import Call

_READ_BYTES: Final = 2**16


@dataclass
class _Running:
    """A job, and the process that it has."""

    job: Job
    child: int
    inlet: int
    end: float  # of the monotonic clock
    said: Incoming[Returned] = field(init=False)

    def __post_init__(self) -> None:
        self.said = Incoming(Returned, max_bytes=most_bytes(self.job))


def serve(requests: int, replies: int, setup: Setup, calls: Sequence[Call]) -> None:
    """Judge what comes, until the other side closes. The setup has one function."""
    worker = _ConcurrentWorker(replies, setup, calls)
    incoming = Incoming(Job)
    try:
        while True:
            for file in worker.ready(requests):
                if file != requests:
                    worker.hear(file)
                    continue
                data = os.read(requests, _READ_BYTES)
                if not data:
                    return
                for job in incoming.take(data):
                    worker.begin(job)
            worker.end_late()
            worker.flush()
    finally:  # also when this worker is asked to end
        worker.end()


class _ConcurrentWorker:
    def __init__(self, replies: int, setup: Setup, calls: Sequence[Call]) -> None:
        os.set_blocking(replies, False)  # who judges does not wait for who is judged for
        self._replies, self._setup, self._calls = replies, setup, calls
        (self._function,) = setup.functions
        self._running: dict[int, _Running] = {}  # by their pipes
        self._unsent = bytearray()

    def ready(self, requests: int) -> list[int]:
        """Pipes that have something, once one has, or a job is late."""
        poll = select.poll()
        for file in (requests, *self._running):
            poll.register(file, select.POLLIN)
        if self._unsent:
            poll.register(self._replies, select.POLLOUT)
        first = min((running.end for running in self._running.values()), default=None)
        wait = None if first is None else max(0.0, first - time.monotonic()) * 1000
        return [file for file, _ in poll.poll(wait) if file != self._replies]

    def begin(self, job: Job) -> None:
        child, inlet = forked(self._setup, self._calls, job)
        end = time.monotonic() + self._function.time_limit_seconds
        self._running[inlet] = _Running(job=job, child=child, inlet=inlet, end=end)

    def hear(self, inlet: int) -> None:
        """What a job's process says, or its end."""
        running = self._running[inlet]
        data = os.read(inlet, _READ_BYTES)
        if not data:
            self._over(running, None, "")
            return
        try:
            returned = running.said.take(data)
        except (FrameTooLong, msgspec.MsgspecError):
            self._over(running, None, NO_OUTCOME)
            return
        if returned:
            found = returned[0].found
            sound = len(found) == len(running.job.responses)
            self._over(running, found if sound else None, NO_OUTCOME)

    def end_late(self) -> None:
        now = time.monotonic()
        for running in [each for each in self._running.values() if each.end <= now]:
            self._over(running, None, took_longer(self._function))

    def flush(self) -> None:
        """Send of the answers what the pipe takes."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self._replies, self._unsent)]
            except BlockingIOError:
                return

    def end(self) -> None:
        """What runs; `all_ended` waits for it."""
        for running in self._running.values():
            os.kill(running.child, signal.SIGKILL)

    def _over(self, running: _Running, found: Found | None, why: str) -> None:
        """Reap its process with all that it started, and answer.

        Args:
            why: there is no answer; "": its process has ended by itself.
        """
        del self._running[running.inlet]
        os.close(running.inlet)
        if why:
            os.kill(running.child, signal.SIGKILL)
        _, status = os.waitpid(running.child, 0)
        self._end_left_behind()
        found = found or all_failed(running.job, why or how_it_ended(status))
        self._unsent += frame(Outcomes(outcomes=(found,), number=running.job.number))

    def _end_left_behind(self) -> None:
        """By calls that are over. What those of the others start is theirs still."""
        ours = {running.child for running in self._running.values()}
        while left := [process for process in children() if process not in ours]:
            for process in left:
                os.kill(process, signal.SIGKILL)
            for process in left:
                os.waitpid(process, 0)
