"""The manager's side of its file server: start it when it is wanted, watch it, start it again.

The manager holds the listening socket. So the port stays the same whatever becomes of the
process, and who connects while there is none waits in the socket's queue instead of being
refused. Nobody connects where all servers see the learner's disk: there the process is never
started.
"""

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.host.starting import start_program
from rlboost_jax.manager.service.file_server.orders import PageSetup, Serve, Setup, frame
from rlboost_jax.manager.service.gate import BACKLOG
from rlboost_jax.messages import Manifest
from rlboost_jax.weights.serve import served_version

PROGRAM: Final = "rlboost_jax.manager.service.file_server"
LEAVE_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Restarts:
    """When a process counts as ended, and when the next one starts.

    Attributes:
        silence_seconds: of one that says each second that it lives, its start included.
        settled_seconds: one that lived as long was a good one: the back-off begins anew.
        first_backoff_seconds: doubles with each process that ends soon.
    """

    silence_seconds: float = 300.0
    settled_seconds: float = 5.0
    first_backoff_seconds: float = 0.1
    longest_backoff_seconds: float = 5.0


RESTARTS: Final = Restarts()


def listening_socket(host: str, port: int) -> socket.socket:
    """Raises OSError where the address cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


class FileServer:
    """To be made and used in one event loop. Nothing here blocks it.

    Args:
        listener: closed by `close`.
        report: called with a line on why a process ended that should not have.
        fail: called with a mistake of this side, after which no process is watched.
        command: starts a process; the arguments of `__main__` are appended.
        what: it is, for the log.
    """

    def __init__(
        self,
        listener: socket.socket,
        setup: Setup | PageSetup,
        report: Callable[[str], None],
        fail: Callable[[BaseException], None],
        command: tuple[str, ...] = (sys.executable, "-m", PROGRAM),
        restarts: Restarts = RESTARTS,
        what: str = "the file server",
    ) -> None:
        self._listener, self._setup, self._report = listener, setup, report
        self._command, self._restarts = command, restarts
        self._serve = Serve(versions=())
        self._process: asyncio.subprocess.Process | None = None
        self._fail, self._what = fail, what
        self._task = asyncio.get_running_loop().create_task(self._watch())
        self._task.add_done_callback(self._over)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int | None:
        """Of the process at work."""
        return None if self._process is None else self._process.pid

    def serve(self, manifests: Iterable[Manifest]) -> None:
        """Let the files of these be fetched, and no others."""
        self._serve = Serve(versions=tuple(map(served_version, manifests)))
        if self._process is not None:
            self._send_orders(self._process)

    async def close(self) -> None:
        """End the process and stop listening."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._listener.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _watch(self) -> None:
        """One process after the other."""
        loop = asyncio.get_running_loop()
        restarts, attempt = self._restarts, 0
        while True:
            await self._wanted()
            began = loop.time()
            try:
                reason = await self._live()
            except OSError as error:  # no memory, no more processes
                reason = f"it cannot be started: {error}"
            if loop.time() - began >= restarts.settled_seconds:
                attempt = 0
            log.error("%s ended: %s", self._what, reason)
            self._report(reason)
            await asyncio.sleep(
                backoff_seconds(
                    attempt,
                    first=restarts.first_backoff_seconds,
                    longest=restarts.longest_backoff_seconds,
                )
            )
            attempt += 1

    async def _wanted(self) -> None:
        """Until somebody connects."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._listener, _settle, waiting)
        try:
            await waiting
        finally:
            loop.remove_reader(self._listener)

    async def _live(self) -> str:
        """One process from start to end; returns why it ended."""
        process = await start_program(
            *self._command,
            f"--listener={self._listener.fileno()}",
            f"--manager={os.getpid()}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._listener.fileno()],
            start_new_session=True,  # an interrupt in the terminal is not for it
        )
        reason = ""
        try:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(frame(self._setup))
            self._send_orders(process)
            self._process = process
            reason = await _heard_out(process.stdout, self._restarts.silence_seconds)
        finally:
            self._process = None
            code = await asyncio.shield(_ended(process, at_once=bool(reason)))
        return reason or (f"signal {-code}" if code < 0 else f"exit code {code}")

    def _send_orders(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.write(frame(self._serve))  # to one that has ended it goes nowhere


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _heard_out(pipe: asyncio.StreamReader, silence_seconds: float) -> str:
    """Until the process closes its output, or is silent: then why it must be ended, else "".

    Silence counts the second time only. The first may be our own: a process that was stopped
    finds its timers due before what came meanwhile is read.
    """
    silences = 0
    while silences < 2:
        try:
            async with asyncio.timeout(silence_seconds / 2):
                if not await pipe.read(4096):
                    return ""
            silences = 0
        except TimeoutError:
            silences += 1
    return f"silent for {silence_seconds:g} s"


async def _ended(process: asyncio.subprocess.Process, *, at_once: bool) -> int:
    """Its exit code, once it is gone: by itself, as it does at the end of its input, or killed."""
    assert process.stdin is not None
    process.stdin.close()
    if not at_once:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    return await process.wait()
