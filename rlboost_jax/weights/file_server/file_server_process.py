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
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from rlboost_jax.messages import Manifest
from rlboost_jax.platform import exits
from rlboost_jax.platform.program_start import start_program
from rlboost_jax.platform.restarts import Again, Cause, End, Restarts, Stop, after_end
from rlboost_jax.trust.gate import BACKLOG
from rlboost_jax.weights.file_server.file_server_orders import (
    FileServerSetup,
    PageSetup,
    Serve,
    order_frame,
)
from rlboost_jax.weights.serve import served_version

PROGRAM: Final = "rlboost_jax.weights.file_server"
LEAVE_SECONDS: Final = 1.0

log = logging.getLogger(__name__)


SILENCE_SECONDS: Final = 300.0  # of one that says each second that it lives, its start included
# A run can do without its file server for a while, and without its page for good.
ENDLESS: Final = Restarts(most_starts=None)


def listening_socket(host: str, port: int) -> socket.socket:
    """Open a listening socket. Raises OSError if the address is not available."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.create_server(address[:2], family=family, backlog=BACKLOG)
    listener.setblocking(False)
    return listener


class FileServer:
    """Supervisor of the file server process. Used in one event loop, which it never blocks.

    Args:
        listener: closed by `close`.
        setup: first order; what makes the frames of all orders that a new process needs, where
            `order` sends further ones.
        report: called with a line on why a process ended that should not have.
        fail: called with a mistake of this side, after which no process is watched.
        command: starts a process; the arguments of `__main__` are appended. None: `program`.
        restarts: after which pauses the next one starts.
        silence_seconds: after which one is ended, its start included; it says each second that it
            lives.
        what: it is, for the log.
        program: module that is run.
        at_once: start it before anybody connects.
        inherited: descriptors that it has besides, under the same numbers.
    """

    def __init__(
        self,
        listener: socket.socket,
        setup: FileServerSetup | PageSetup | Callable[[], Iterable[bytes]],
        report: Callable[[str], None],
        fail: Callable[[BaseException], None],
        command: tuple[str, ...] | None = None,
        restarts: Restarts = ENDLESS,
        silence_seconds: float = SILENCE_SECONDS,
        what: str = "the file server",
        program: str = PROGRAM,
        at_once: bool = False,
        inherited: Sequence[int] = (),
    ) -> None:
        self._at_once, self._inherited = at_once, inherited
        command = command or (sys.executable, "-m", program)
        self._listener, self._setup, self._report = listener, setup, report
        self._command, self._restarts, self._silence = command, restarts, silence_seconds
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
        """Process id of the running file server; None if none runs."""
        return None if self._process is None else self._process.pid

    def serve(self, manifests: Iterable[Manifest]) -> None:
        """Serve the files of these manifests, and no others."""
        self._serve = Serve(versions=tuple(map(served_version, manifests)))
        if self._process is not None:
            self._send_orders(self._process)

    def order(self, frame: bytes) -> None:
        """Send an order to the process, if one runs: another will be given all that it needs."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.write(frame)

    async def close(self) -> None:
        """End the process and stop listening."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._listener.close()

    def _over(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _watch(self) -> None:
        """Run one process after the other."""
        loop, failed = asyncio.get_running_loop(), 0
        while True:
            if not self._at_once:
                await self._wanted()
            began = loop.time()
            try:
                reason = await self._live()
            except OSError as error:  # no memory, no more processes
                reason = f"cannot be started: {error}"
            log.error("%s %s", self._what, reason)
            self._report(reason)
            end = End(cause=Cause.OUTSIDE, how=reason, served_seconds=loop.time() - began)
            match after_end(self._what, failed, end, self._restarts):
                case Again(failed=failed, seconds=seconds):
                    await asyncio.sleep(seconds)
                case Stop(line=line):
                    self._report(line)
                    return

    async def _wanted(self) -> None:
        """Wait until a client connects."""
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._listener, _settle, waiting)
        try:
            await waiting
        finally:
            loop.remove_reader(self._listener)

    async def _live(self) -> str:
        """Run one process from start to end; returns why it ended."""
        process = await start_program(
            *self._command,
            f"--listener={self._listener.fileno()}",
            f"--manager={os.getpid()}",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            pass_fds=[self._listener.fileno(), *self._inherited],
            start_new_session=True,  # an interrupt in the terminal is not for it
        )
        reason = ""
        try:
            assert process.stdin is not None and process.stdout is not None
            if isinstance(self._setup, FileServerSetup | PageSetup):
                process.stdin.write(order_frame(self._setup))
                self._send_orders(process)
            else:
                process.stdin.writelines(self._setup())
            self._process = process
            reason = await _heard_out(process.stdout, self._silence)
        finally:
            self._process = None
            code = await asyncio.shield(_ended(process, at_once=bool(reason)))
        return reason or exits.described(exits.of_process(code))

    def _send_orders(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        process.stdin.write(order_frame(self._serve))  # to one that has ended it goes nowhere


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _heard_out(pipe: asyncio.StreamReader, silence_seconds: float) -> str:
    """Read heartbeats until the process closes its output or falls silent.

    Returns "" for the first, and for the second why the process must be ended.
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
    return f"was silent for {silence_seconds:g} s"


async def _ended(process: asyncio.subprocess.Process, *, at_once: bool) -> int:
    """Wait for the process to exit, or kill it; returns its exit code."""
    assert process.stdin is not None
    process.stdin.close()
    if not at_once:
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(process.wait(), LEAVE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    return await process.wait()
