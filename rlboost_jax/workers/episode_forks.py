"""The trainer's handles on a worker that forks another for each episode, and on the forked ones."""

import asyncio
import contextlib
import os
import signal
import socket
from itertools import count
from typing import Final, assert_never

from rlboost_jax.platform.fork_server import (
    ForkClient,
    ForkEnded,
    ForkRefused,
    ForkReport,
    ForkRequest,
    ForkServerReady,
    ForkStarted,
)
from rlboost_jax.workers.worker_process import WorkerProcess, ended_with

STATUS_SECONDS: Final = 5.0  # for the status of a process whose socket has closed


class EpisodeForks:
    """A forking process, which is prepared, and the processes that it has forked."""

    def __init__(self, process: WorkerProcess) -> None:
        self._process, self._names = process, map(str, count())
        self._forked: dict[str, Forked] = {}  # requested, and not over
        self._client = ForkClient(process.end, hear=self._hear, over=self._over)

    @property
    def lives(self) -> bool:
        return self._client.lives and self._process.lives

    async def fork(self) -> "tuple[socket.socket, Forked]":
        """Fork a process. Raises OSError if none can be, or the forking process is gone."""
        name = next(self._names)
        forked = self._forked[name] = Forked(self._process.kind.what)
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._client.say(ForkRequest(name=name, has_file=True), theirs)
            await forked.started
        except BaseException:
            ours.close()
            forked.stop()
            raise
        return ours, forked

    async def close(self) -> None:
        self._process.stop()
        await self._process.ended()
        await self._client.close()

    def _hear(self, report: ForkReport) -> None:
        match report:
            case ForkStarted(name=name, pid=pid):
                self._forked[name].start(pid)
            case ForkRefused(name=name, reason=reason):
                self._forked.pop(name).end(-signal.SIGKILL, OSError(reason))
            case ForkEnded(name=name, code=code):
                self._forked.pop(name).end(code)
            case ForkServerReady():
                pass
            case unknown:
                assert_never(unknown)

    def _over(self, mistake: Exception | None) -> None:
        gone = ConnectionResetError("the process that forks for episodes ended")
        for forked in self._forked.values():  # they end with it
            forked.end(-signal.SIGKILL, gone)
        self._forked.clear()


class Forked:
    """A process that is forked for an episode by another process.

    Attributes:
        started: done once it is; raises OSError if that cannot be.
    """

    def __init__(self, what: str) -> None:
        loop = asyncio.get_running_loop()
        self.started: asyncio.Future[None] = loop.create_future()
        self._what, self._code = what, loop.create_future()
        self.pid = 0
        self._pidfd: int | None = None

    def start(self, pid: int) -> None:
        """Note that it has started."""
        if self.started.done():  # nobody waits for it any more; it ends with its socket
            return
        self.pid = pid
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or gone already
            self._pidfd = os.pidfd_open(pid)
        self.started.set_result(None)

    def end(self, code: int, reason: OSError | None = None) -> None:
        """Note that it is over, or, for that reason, has never started."""
        self._code.set_result(code)
        if not self.started.done() and reason is not None:
            self.started.set_exception(reason)

    def stop(self) -> None:
        if self._pidfd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.close(self._pidfd)
            self._pidfd = None

    async def ended(self) -> None:
        """Return at once: the process is not ours to wait for."""

    async def how_it_ended(self) -> tuple[str, bool]:
        """How the process ended, see `Process`."""
        try:
            async with asyncio.timeout(STATUS_SECONDS):
                code: int = await asyncio.shield(self._code)
        except TimeoutError:
            return f"the {self._what} closed its socket", False
        return ended_with(self._what, code)
