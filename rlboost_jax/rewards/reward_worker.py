"""A reward worker: judges jobs, each in a process of its own.

`python -m rlboost_jax.rewards.reward_worker SOCKET` is started by `worker_process.py`; SOCKET is
the number of a file that is inherited. The trainer decides how many jobs there are at a time. The
worker imports the functions once and then forks for every job, a response or a group of them: a
crash, a hang, endless allocation or a changed global costs that job only, and no call can see what
another has left behind, so that results depend on neither the order nor the number of workers. A
call is killed after its time with all that it started. The worker has no thread of its own.
"""

import contextlib
import importlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, assert_never

import msgspec

from rlboost_jax.platform import exits
from rlboost_jax.platform.frames import FrameDecoder, FrameTooLong, frame
from rlboost_jax.platform.interrupts import raise_at
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.process_liveness import adopt_orphans
from rlboost_jax.rewards.forked_call import (
    NO_OUTCOME,
    PIPE_CLOSED,
    all_ended,
    end_call,
    ends_by_itself,
    forked,
    how_it_ended,
    most_bytes,
    took_longer,
)
from rlboost_jax.rewards.functions import Call, Unusable, load
from rlboost_jax.rewards.reward_frames import (
    Found,
    Outcomes,
    Returned,
    RewardJob,
    RewardSetup,
    all_failed,
)
from rlboost_jax.workers.worker_kind import Ping, Pong
from rlboost_jax.workers.worker_program import started

_READ_BYTES: Final = 2**16


def main() -> None:
    raise_at([signal.SIGTERM], lambda number: SystemExit(exits.by_signal(number)))
    adopt_orphans()  # of calls, to be ended
    if (begun := started(RewardSetup, _imported)) is not None:
        line, setup, calls = begun
        with all_ended():
            serve(line.fileno(), setup, calls)


def _imported(setup: RewardSetup) -> list[Call]:
    """Import the functions. Raises ConfigError."""
    calls = []
    for reward in setup.functions:
        try:
            calls.append(load(reward, setup.columns))
        except Unusable as error:
            raise ConfigError(f"rewards.functions {reward.shown_as!r} {error}") from error
    if "numpy" in sys.modules:  # each child seeds it, and would import it first
        importlib.import_module("numpy.random")
    return calls


def serve(line: int, setup: RewardSetup, calls: Sequence[Call]) -> None:
    """Judge jobs until the other side closes."""
    worker = _RewardWorker(line, setup, calls)
    incoming: FrameDecoder[RewardJob | Ping] = FrameDecoder(RewardJob | Ping)  # type: ignore[arg-type]
    try:
        while True:
            for file in worker.ready():
                if file != line:
                    worker.hear(file)
                    continue
                data = os.read(line, _READ_BYTES)
                if not data:
                    return
                for message in incoming.take(data):
                    worker.take(message)
            worker.end_late()
            worker.flush()
    finally:  # also when this worker is asked to end
        worker.end()


@dataclass
class _RunningJob:
    """A job with the process that calls its functions one after the other.

    Attributes:
        left: functions that have not returned, by their place in the setup; the process is with
            the first.
        end: of the first function's time, by the monotonic clock.
    """

    job: RewardJob
    left: list[int]
    found: list[Found] = field(default_factory=list)
    child: int = 0
    inlet: int = -1
    end: float = 0.0
    returned: FrameDecoder[Returned] = field(init=False)


class _RewardWorker:
    def __init__(self, line: int, setup: RewardSetup, calls: Sequence[Call]) -> None:
        os.set_blocking(line, False)  # who judges does not wait for who is judged for
        self._line, self._setup, self._calls = line, setup, calls
        self._running: dict[int, _RunningJob] = {}  # by their pipes
        self._unsent = bytearray()

    def ready(self) -> list[int]:
        """Wait until a file can be read or written, or a job is late; returns the readable ones."""
        poll = select.poll()
        for file in self._running:
            poll.register(file, select.POLLIN)
        poll.register(self._line, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        first = min((running.end for running in self._running.values()), default=None)
        wait = None if first is None else max(0.0, first - time.monotonic()) * 1000
        return [file for file, event in poll.poll(wait) if event != select.POLLOUT]

    def take(self, message: RewardJob | Ping) -> None:
        """Begin a job, or answer a ping."""
        match message:
            case RewardJob(per=per):
                asked = [i for i, each in enumerate(self._setup.functions) if each.per == per]
                self._go_on(_RunningJob(job=message, left=asked))
            case Ping(number=number):
                self._unsent += frame(Pong(number=number))
            case unknown:
                assert_never(unknown)

    def hear(self, inlet: int) -> None:
        """Read from a job's process, or notice its end."""
        running = self._running[inlet]
        data = os.read(inlet, _READ_BYTES)
        if not data:
            self._broke(running, "" if ends_by_itself(running.child) else PIPE_CLOSED)
            return
        try:
            for returned in running.returned.take(data):
                if len(returned.found) != len(running.job.responses):
                    self._broke(running, NO_OUTCOME)
                    return
                running.found.append(returned.found)
                del running.left[0]
                if not running.left:
                    self._end(running, at_once=True)
                    self._answer(running)
                    return
                running.end = self._end_of_first(running)
        except (FrameTooLong, msgspec.MsgspecError):
            self._broke(running, NO_OUTCOME)

    def end_late(self) -> None:
        now = time.monotonic()
        for running in [each for each in self._running.values() if each.end <= now]:
            self._broke(running, took_longer(self._setup.functions[running.left[0]]))

    def flush(self) -> None:
        """Send as many bytes of answers as the socket takes."""
        while self._unsent:
            try:
                del self._unsent[: os.write(self._line, self._unsent)]
            except BlockingIOError:
                return

    def end(self) -> None:
        """Kill the running processes; `all_ended` waits for them."""
        for running in self._running.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(running.child, signal.SIGKILL)

    def _go_on(self, running: _RunningJob) -> None:
        """Fork a process for the functions that are left."""
        calls = [self._calls[place] for place in running.left]
        running.child, running.inlet = forked(self._setup, calls, running.job)
        running.returned = FrameDecoder(Returned, max_bytes=most_bytes(running.job))
        running.end = self._end_of_first(running)
        self._running[running.inlet] = running

    def _broke(self, running: _RunningJob, why: str) -> None:
        """Note that the first function that is left costs its process; another calls the others.

        Args:
            why: "": the process has ended by itself.
        """
        status = self._end(running, at_once=bool(why))
        running.found.append(all_failed(running.job, why or how_it_ended(status)))
        del running.left[0]
        if running.left:
            self._go_on(running)
        else:
            self._answer(running)

    def _end(self, running: _RunningJob, *, at_once: bool) -> int:
        """Reap a job's process and everything it started; returns its wait status."""
        del self._running[running.inlet]
        os.close(running.inlet)
        others = {other.child for other in self._running.values()}
        return end_call(running.child, at_once=at_once, others=others)

    def _answer(self, running: _RunningJob) -> None:
        answer = Outcomes(outcomes=tuple(running.found), number=running.job.number)
        self._unsent += frame(answer)

    def _end_of_first(self, running: _RunningJob) -> float:
        return time.monotonic() + self._setup.functions[running.left[0]].time_limit_seconds


if __name__ == "__main__":
    main()
