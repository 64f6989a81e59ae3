"""Queue of jobs in front of one place that judges them: a pool of workers or a service."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future

from rlboost_jax.rewards.reward_frames import Found, RewardJob
from rlboost_jax.workers.local_workers import WorkersLost
from rlboost_jax.workers.service_thread import ServiceThread

RewardAnswer = Future[tuple[Found, ...]]


class RewardQueue:
    """Has jobs judged in an event loop, so many at a time, in the order in which they come.

    Each answer is done exactly once: with outcomes, or with an exception where nobody can judge
    any more.

    Args:
        judge: outcomes of each function of a job, in order.
        most: jobs at a time.
    """

    def __init__(
        self,
        thread: ServiceThread,
        judge: Callable[[RewardJob], Awaitable[tuple[Found, ...]]],
        *,
        most: int,
    ) -> None:
        self._thread, self._judge = thread, judge
        self._room = asyncio.Semaphore(most)
        self._lock = threading.Lock()  # of the two below
        self._closed = False
        self._open: set[RewardAnswer] = set()

    def ask(self, job: RewardJob) -> RewardAnswer:
        """Submit a job. Any thread, never blocks."""
        answer: RewardAnswer = Future()
        with self._lock:
            if self._closed:
                answer.cancel()
                return answer
            self._open.add(answer)
        answer.add_done_callback(self._forget)
        self._thread.spawn(self._answer(job, answer), answer.set_exception)
        return answer

    def close(self) -> None:
        """Take no more jobs."""
        with self._lock:
            self._closed = True

    def abandon(self) -> None:
        """Cancel the answers that are missing once the thread has ended, or have them fail."""
        with self._lock:
            missing = list(self._open)
        for answer in missing:
            if not (answer.done() or answer.cancel()):
                answer.set_exception(WorkersLost("the rewards' processes were asked to end"))

    async def _answer(self, job: RewardJob, answer: RewardAnswer) -> None:
        async with self._room:
            if answer.set_running_or_notify_cancel():
                answer.set_result(await self._judge(job))

    def _forget(self, answer: RewardAnswer) -> None:
        with self._lock:
            self._open.discard(answer)
