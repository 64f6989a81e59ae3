"""The calls of one function that wait side by side, asked by the trainer.

One thread keeps a worker (`concurrent_worker.py`) busy with as many jobs as the function's
`max_concurrent` says. Whatever happens to the worker, each job's future is done exactly once, as
in `pool.py`.
"""

import contextlib
import os
import select
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final

import msgspec

from rlboost_jax.rewards.frames import Found, Incoming, Job, Outcomes, Setup, Unsendable, all_failed
from rlboost_jax.rewards.pool import (
    ATTEMPTS,
    END_SECONDS,
    GRACE_SECONDS,
    START_SECONDS,
    Answer,
    EndedFromOutside,
    RewardWorkersLost,
    Worker,
    WorkerGone,
    after_pause,
)
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.supervision.restarts import RESTARTS, Restarts, StartsExhausted

_READ_BYTES: Final = 2**16


@dataclass
class _Asked:
    job: Job
    answer: Answer
    begun: bool = False
    faults: int = 0  # of workers that had it
    late_at: float = 0.0  # of the monotonic clock: the worker should have ended it long before


class ConcurrentPool:
    """Raises ConfigError, when made, for a function that a worker cannot use.

    Args:
        setup: with one function.
        start_seconds: within which a worker imports it.
        restarts: of a worker that somebody ends before it has answered anything.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        start_seconds: float = START_SECONDS,
        restarts: Restarts = RESTARTS,
    ) -> None:
        (function,) = setup.functions
        self._setup, self._start_seconds, self._restarts = setup, start_seconds, restarts
        self._failed = 0  # workers in a row that were ended from outside; the thread's alone
        self._most = function.max_concurrent
        self._limit = function.time_limit_seconds + GRACE_SECONDS
        self._lock = threading.Lock()  # of the three below
        self._closing = threading.Event()
        self._waiting: deque[_Asked] = deque()
        self._worker: Worker | None = None
        self._running: dict[int, _Asked] = {}  # by number; the thread's alone
        self._next = 0
        self._incoming = Incoming(Outcomes)
        while True:
            try:
                self._start()
                break
            except EndedFromOutside as error:
                self._failed = after_pause(self._failed, error, self._restarts, self._closing)
        self._woken, self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="rewards-at-once", daemon=True)
        self._thread.start()

    def ask(self, job: Job) -> Answer:
        """What the function says; of any thread."""
        answer: Answer = Future()
        with self._lock:
            if self._closing.is_set():
                answer.cancel()
            else:
                self._waiting.append(_Asked(job, answer))
                os.write(self._wake, b".")
        return answer

    def close(self) -> None:
        """End the worker; what was not answered is cancelled or an exception."""
        with self._lock:
            self._closing.set()
            os.write(self._wake, b".")
            if self._worker is not None:
                self._worker.tell_to_end()
        self._thread.join()
        if self._worker is not None:
            self._worker.await_end(time.monotonic() + END_SECONDS)
            self._worker.close()
        for file in (self._woken, self._wake):
            os.close(file)

    def _serve(self) -> None:
        while not self._closing.is_set():
            try:
                self._fill()
                self._hear()
            except WorkerGone as error:
                try:
                    self._again(error)
                except StartsExhausted as error:
                    self._fail(error)
            except (RewardWorkersLost, StartsExhausted) as error:
                self._fail(error)
        self._fail(RewardWorkersLost("the reward workers were asked to end"))

    def _fill(self) -> None:
        """Hand the worker all that it may have. Raises WorkerGone, RewardWorkersLost."""
        while len(self._running) < self._most:
            with self._lock:
                if self._closing.is_set() or not self._waiting:
                    return
                asked = self._waiting.popleft()
            if not (asked.begun or asked.answer.set_running_or_notify_cancel()):
                continue  # nobody wants it any more
            self._next += 1
            asked.begun = True
            asked.late_at = time.monotonic() + self._limit
            self._running[self._next] = asked
            try:
                self._there().send(msgspec.structs.replace(asked.job, number=self._next))
            except Unsendable as error:
                self._done(self._next, all_failed(asked.job, str(error)))

    def _hear(self) -> None:
        """Wait for answers or for more to ask. Raises WorkerGone."""
        worker, poll = self._worker, select.poll()
        poll.register(self._woken, select.POLLIN)
        if worker is not None:
            poll.register(worker.outlet, select.POLLIN)
        late_at = min((asked.late_at for asked in self._running.values()), default=None)
        wait = None if late_at is None else max(0.0, late_at - time.monotonic()) * 1000
        ready = {file for file, _ in poll.poll(wait)}
        if self._woken in ready:
            os.read(self._woken, _READ_BYTES)
        if worker is not None and worker.outlet in ready:
            data = os.read(worker.outlet, _READ_BYTES)
            if not data:
                raise worker.gone()
            try:
                answers = self._incoming.take(data)
            except (ValueError, msgspec.MsgspecError):
                raise worker.gone() from None
            for answer in answers:
                self._done(answer.number, answer.outcomes[0])
        if late_at is not None and not ready and time.monotonic() >= late_at:
            raise WorkerGone("the reward worker did not answer")

    def _done(self, number: int, found: Found) -> None:
        self._failed = 0
        self._running.pop(number).answer.set_result((found,))

    def _again(self, error: WorkerGone) -> None:
        """The worker is gone: what it had is asked anew, in the same order, but not for ever.

        Raises:
            StartsExhausted: no worker is started any more.
        """
        self._forget()
        lost = list(self._running.values())
        self._running.clear()
        for asked in lost:
            asked.faults += not isinstance(error, EndedFromOutside)
            if asked.faults >= ATTEMPTS:
                asked.answer.set_result((all_failed(asked.job, str(error)),))
        with self._lock:
            left = [asked for asked in lost if asked.faults < ATTEMPTS]
            self._waiting.extendleft(reversed(left))
        if isinstance(error, EndedFromOutside):
            self._failed = after_pause(self._failed, error, self._restarts, self._closing)

    def _fail(self, error: Exception) -> None:
        """All that is asked."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        for asked in self._running.values():
            asked.answer.set_exception(error)
        self._running.clear()
        for asked in waiting:
            if asked.begun or asked.answer.set_running_or_notify_cancel():
                asked.answer.set_exception(error)

    def _there(self) -> Worker:
        """Raises EndedFromOutside, RewardWorkersLost."""
        if self._worker is None:
            try:
                self._start()
            except (ConfigError, OSError) as error:
                raise RewardWorkersLost(
                    f"a reward worker cannot be started again: {error}"
                ) from error
        assert self._worker is not None
        return self._worker

    def _start(self) -> None:
        """Raises ConfigError, OSError, EndedFromOutside, RewardWorkersLost."""
        with self._lock:
            if self._closing.is_set():
                raise RewardWorkersLost("the reward workers were asked to end")
            self._worker = Worker(self._setup, self._start_seconds)
        self._incoming = Incoming(Outcomes)
        try:
            self._worker.prepare()
        except BaseException:  # whatever it was, it goes on upwards
            self._forget()
            raise

    def _forget(self) -> None:
        """End the worker, if there is one."""
        with self._lock:
            worker, self._worker = self._worker, None
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                worker.end()
            worker.close()
