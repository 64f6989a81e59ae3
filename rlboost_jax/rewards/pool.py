"""Reward workers of the trainer: a few processes, each asked one job at a time.

A thread per worker waits for it, so the learner's own thread never does. Whatever happens to a
worker, each job's future is done exactly once: with outcomes, or with an exception where the
workers themselves cannot be kept up.
"""

import os
import queue
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from typing import Final

import msgspec

from rlboost_jax.rewards.frames import (
    Found,
    Job,
    Outcomes,
    Ready,
    Setup,
    Unsendable,
    all_failed,
    receive,
    send,
)
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.supervision import exits
from rlboost_jax.supervision.restarts import (
    RESTARTS,
    Again,
    Cause,
    End,
    Restarts,
    StartsExhausted,
    Stop,
    after_end,
)

START_SECONDS: Final = 120.0  # imports of a user's module, on a busy host
GRACE_SECONDS: Final = 10.0  # a worker ends a late call itself; beyond this it is stuck
END_SECONDS: Final = 5.0  # for a worker to take its children along
ATTEMPTS: Final = 2  # of a job whose worker broke or is stuck
LAST_SECONDS: Final = 1.0  # for a worker to be gone once it has closed its pipe

Answer = Future[tuple[Found, ...]]


class RewardWorkersLost(RuntimeError):
    """Workers end as soon as they are started; the run cannot go on."""


class RewardPool:
    """Raises ConfigError, when made, for functions that a worker cannot use.

    Args:
        start_seconds: within which a worker imports its functions.
        restarts: of a worker that somebody ends before it is ready, or while it judges one job.
    """

    def __init__(
        self,
        setup: Setup,
        *,
        workers: int,
        start_seconds: float = START_SECONDS,
        restarts: Restarts = RESTARTS,
    ) -> None:
        self._setup, self._start_seconds, self._restarts = setup, start_seconds, restarts
        self._jobs: queue.SimpleQueue[tuple[Job, Answer] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the two below
        self._closing = threading.Event()
        self._workers: list[Worker] = []
        first = self._started()  # alone, so that a mistake is reported once
        self._threads = [
            threading.Thread(
                target=self._serve, args=(first if i == 0 else None,), name=f"rewards-{i}"
            )
            for i in range(workers)
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def ask(self, job: Job) -> Answer:
        """What each function that it asks says, in order; of any thread."""
        answer: Answer = Future()
        with self._lock:
            if self._closing.is_set():
                answer.cancel()
            else:
                self._jobs.put((job, answer))
        return answer

    def close(self) -> None:
        """End the workers, all at once; what was not answered is cancelled or an exception."""
        with self._lock:
            self._closing.set()
        # From here on no worker comes or goes, and nothing is asked any more.
        for worker in self._workers:
            worker.tell_to_end()
        end = time.monotonic() + END_SECONDS
        for worker in self._workers:
            worker.await_end(end)
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def _serve(self, worker: "Worker | None") -> None:
        while (entry := self._jobs.get()) is not None:
            job, answer = entry
            if self._closing.is_set():
                answer.cancel()
            elif answer.set_running_or_notify_cancel():
                try:
                    worker, outcomes = self._judged(worker, job)
                except Exception as error:  # the waiter for the answer gets it
                    worker = None
                    answer.set_exception(error)
                else:
                    answer.set_result(outcomes)

    def _judged(
        self, worker: "Worker | None", job: Job
    ) -> "tuple[Worker | None, tuple[Found, ...]]":
        failed, faults = 0, list[str]()
        while len(faults) < ATTEMPTS:
            if self._closing.is_set():
                raise RewardWorkersLost("the reward workers were asked to end")
            try:
                worker = worker or self._started()
            except (ConfigError, OSError) as error:
                raise RewardWorkersLost(
                    f"a reward worker cannot be started again: {error}"
                ) from error
            try:
                return worker, worker.judge(job)
            except Unsendable as error:
                return worker, self._failed(job, str(error))
            except EndedFromOutside as error:
                failed = after_pause(failed, error, self._restarts, self._closing)
            except WorkerGone as error:
                faults.append(str(error))
            worker.end()
            self._forget(worker)
            worker = None
        return None, self._failed(job, faults[-1])

    def _failed(self, job: Job, fault: str) -> tuple[Found, ...]:
        asked = sum(function.per == job.per for function in self._setup.functions)
        return (all_failed(job, fault),) * asked

    def _started(self) -> "Worker":
        """One that is ready; who is ended from outside while it begins has a successor.

        Raises:
            ConfigError, OSError, StartsExhausted, RewardWorkersLost
        """
        failed = 0
        while True:
            with self._lock:
                if self._closing.is_set():
                    raise RewardWorkersLost("the reward workers were asked to end")
                worker = Worker(self._setup, self._start_seconds)
                self._workers.append(worker)
            try:
                worker.prepare()
                return worker
            except EndedFromOutside as error:
                self._forget(worker)
                failed = after_pause(failed, error, self._restarts, self._closing)
            except BaseException:  # whatever it was, it goes on upwards
                worker.end()
                self._forget(worker)
                raise

    def _forget(self, worker: "Worker") -> None:
        """One that has ended; `close` has its pipes closed itself."""
        with self._lock:
            if not self._closing.is_set():
                self._workers.remove(worker)
                worker.close()


class WorkerGone(RuntimeError):
    """A worker itself, not what it runs, has ended or is stuck."""


class EndedFromOutside(WorkerGone):
    """Somebody else ended a worker, which is no fault of what it runs.

    The message goes on after the name of the process.
    """


def after_pause(
    failed: int, error: EndedFromOutside, restarts: Restarts, closing: threading.Event
) -> int:
    """Wait as long as it takes until the next start; returns the starts that came to nothing.

    Args:
        failed: how many had before.
        closing: ends the wait.

    Raises:
        StartsExhausted: there is no next start.
    """
    end = End(cause=Cause.OUTSIDE, how=str(error))
    match after_end("a reward worker", failed, end, restarts):
        case Again(failed=failed, seconds=seconds):
            closing.wait(seconds)
            return failed
        case Stop(line=line):
            raise StartsExhausted(line)


class Worker:
    """One process; asked by one thread at a time, ended by any."""

    def __init__(self, setup: Setup, start_seconds: float) -> None:
        """Raises OSError. The worker is not ready before `prepare`."""
        self._setup, self._start_seconds = setup, start_seconds
        self._limit = sum(f.time_limit_seconds for f in setup.functions) + GRACE_SECONDS
        self._process = subprocess.Popen(
            [sys.executable, "-m", "rlboost_jax.rewards.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={
                "OMP_NUM_THREADS": "1",
                **os.environ,
                "PYTHONHASHSEED": "0",  # sets are in the same order in every worker
                "JAX_PLATFORMS": "cpu",  # the accelerator is the trainer's
            },
            start_new_session=True,  # an interrupt of the trainer is not for them
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    def prepare(self) -> None:
        """Wait until it has imported the functions.

        Raises:
            ConfigError: it cannot use them.
            EndedFromOutside: somebody ended it before it was ready.
        """
        try:
            send(self._stdin.fileno(), self._setup, timeout=self._start_seconds)
            ready = receive(self._stdout.fileno(), Ready, timeout=self._start_seconds)
        except TimeoutError:
            names = ", ".join(function.name for function in self._setup.functions)
            raise ConfigError(
                f"rewards.functions: importing {names} took longer than {self._start_seconds:g} s; "
                "import less at the top of the module"
            ) from None
        except OSError:
            ready = None
        if ready is None:
            gone = self.gone()
            self.end()
            if isinstance(gone, EndedFromOutside):
                raise gone
            raise ConfigError(
                "rewards.functions: the process that imports them ended with code "
                f"{self._process.returncode}; its own output says why"
            )
        if ready.mistake:
            raise ConfigError(ready.mistake)

    @property
    def outlet(self) -> int:
        """The pipe that its answers come through."""
        return self._stdout.fileno()

    def send(self, job: Job) -> None:
        """Raises WorkerGone; Unsendable, after which the worker is as it was."""
        try:
            send(self._stdin.fileno(), job, timeout=GRACE_SECONDS)
        except TimeoutError:
            raise WorkerGone("the reward worker does not listen") from None
        except OSError:
            raise self.gone() from None

    def judge(self, job: Job) -> tuple[Found, ...]:
        """Of a worker that judges one job at a time. Raises as `send` does."""
        self.send(job)
        try:
            answer = receive(self._stdout.fileno(), Outcomes, timeout=self._limit)
        except TimeoutError:
            raise WorkerGone("the reward worker did not answer") from None
        except (OSError, ValueError, msgspec.MsgspecError):
            answer = None
        if answer is None:
            raise self.gone()
        return answer.outcomes

    def gone(self) -> WorkerGone:
        """Why it speaks no more."""
        try:
            code = exits.of_process(self._process.wait(LAST_SECONDS))
        except subprocess.TimeoutExpired:
            return WorkerGone("the reward worker has closed its pipe")
        if exits.is_sent(code):
            return EndedFromOutside(exits.described(code))
        return WorkerGone(f"the reward worker {exits.described(code)}")

    def end(self) -> None:
        """Let it end what it runs and itself, or kill it where it does not."""
        self.tell_to_end()
        self.await_end(time.monotonic() + END_SECONDS)

    def tell_to_end(self) -> None:
        self._process.terminate()

    def await_end(self, end: float) -> None:
        """Kill it where it has not ended by then, a time of the monotonic clock."""
        try:
            self._process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def close(self) -> None:
        """Its pipes, once it has ended and no thread waits for it."""
        self._stdin.close()
        self._stdout.close()
