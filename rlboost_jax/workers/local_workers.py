"""Processes of this host for a pool of workers: started, started again, forked, ended."""

import asyncio
import socket
from typing import Final

from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.restarts import (
    Again,
    Cause,
    End,
    Restarts,
    StartsExhausted,
    Stop,
    after_end,
)
from rlboost_jax.workers.episode_forks import EpisodeForks, Forked
from rlboost_jax.workers.worker_kind import WorkerKind
from rlboost_jax.workers.worker_process import EndedFromOutside, WorkerProcess

FORKS: Final = 2  # attempts: the forking process may have been ended meanwhile


class WorkersLost(Mistake, RuntimeError):
    """Workers end as soon as they are started; the run cannot go on."""


class LocalWorkers:
    """Starts workers of one kind on this host.

    Args:
        start_seconds: within which a worker imports what it runs.
        restarts: of a worker that somebody ends before it is ready.
    """

    def __init__(self, kind: WorkerKind, *, start_seconds: float, restarts: Restarts) -> None:
        self._kind, self._start_seconds, self._restarts = kind, start_seconds, restarts
        self._unready: set[WorkerProcess] = set()
        self._forks: EpisodeForks | None = None
        self._forking = asyncio.Lock()
        self._closed = False

    async def started(self) -> WorkerProcess:
        """Start a process and wait until it is ready.

        One that is ended from outside while it starts is replaced by another.

        Raises:
            ConfigError, OSError, StartsExhausted, WorkersLost
        """
        failed = 0
        while not self._closed:
            process = WorkerProcess(self._kind)
            self._unready.add(process)
            try:
                await process.prepare(self._start_seconds)
                if not self._closed:
                    return process
                process.end.close()
            except EndedFromOutside as error:
                process.end.close()
                if not self._closed:
                    failed = await self.pause(failed, str(error))
            except BaseException:  # whatever it was, it goes on upwards
                process.stop()
                process.end.close()
                raise
            finally:
                self._unready.discard(process)
        raise self.closed()

    async def prepare_to_fork(self) -> None:
        """Start the process that forks. Raises as `started` does."""
        self._forks = EpisodeForks(await self.started())

    async def forked(self) -> tuple[Forked, socket.socket]:
        """Fork a process. Raises as `started` does."""
        async with self._forking:
            for _ in range(FORKS):
                if self._forks is None or not self._forks.lives:
                    await self.prepare_to_fork()
                assert self._forks is not None
                try:
                    end, forked = await self._forks.fork()
                except OSError:
                    await self._forks.close()
                else:
                    return forked, end
        raise WorkersLost(f"the process that forks {self._kind.what}s ends at once")

    async def pause(self, failed: int, how: str) -> int:
        """Wait until the next start is due; returns how many in a row came to nothing.

        Args:
            failed: how many did before.
            how: the process ended.

        Raises:
            StartsExhausted: there is no next start.
        """
        end = End(cause=Cause.OUTSIDE, how=how)
        match after_end(self._kind.a_worker, failed, end, self._restarts):
            case Again(failed=failed, seconds=seconds):
                await asyncio.sleep(seconds)
                return failed
            case Stop(line=line):
                raise StartsExhausted(line)

    def closed(self) -> WorkersLost:
        """Error for a caller that still wants a worker."""
        return WorkersLost(f"the {self._kind.what}s were asked to end")

    def stop(self) -> None:
        """Ask the processes that are not ready yet to end, and start no more."""
        self._closed = True
        for process in self._unready:
            process.stop()

    async def close(self) -> None:
        """Wait for the end of the processes that are not ready yet, and of the one that forks."""
        if self._forks is not None:
            await self._forks.close()
        await asyncio.gather(*(process.ended() for process in self._unready))
