"""A process that forks another for each episode, as both sides see it.

Trainer → it: a byte with a socket. It → trainer: `_RECORD`s, for each process that begins and for
each that ends.
"""

import asyncio
import contextlib
import os
import signal
import socket
import struct
from collections.abc import Callable
from typing import Final

from rlboost_jax.platform.process_liveness import end_with_parent
from rlboost_jax.workers.worker_process import WorkerProcess, ended_with

_RECORD: Final = struct.Struct("<?ii")  # whether it ended, its id, its wait status
STATUS_SECONDS: Final = 5.0  # for the status of a process whose socket has closed


def fork_for_each(line: socket.socket, run: Callable[[socket.socket], None]) -> None:
    """Fork a process for each request, until the trainer closes. The caller has one thread.

    Args:
        run: an episode in a process of its own; does not return.
    """
    parent = os.getpid()

    def reap(number: int, frame: object) -> None:
        with contextlib.suppress(ChildProcessError, OSError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                line.sendall(_RECORD.pack(True, *ended))

    signal.signal(signal.SIGCHLD, reap)
    while True:
        data, files, _, _ = socket.recv_fds(line, 1, 1)
        if not data:
            return
        for file in files:
            child = os.fork()
            if child:
                os.close(file)
                line.sendall(_RECORD.pack(False, child, 0))
                continue
            try:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                line.close()
                os.setsid()
                if end_with_parent(parent):
                    run(socket.socket(fileno=file))
            finally:
                os._exit(1)


class EpisodeForks:
    """The trainer's handle on a forking process and on the processes it has forked."""

    def __init__(self, process: WorkerProcess) -> None:
        """
        Args:
            process: it is prepared.
        """
        self._process = process
        self._begun: asyncio.Queue[tuple[int, asyncio.Future[int]] | None] = asyncio.Queue()
        # Of processes with one record so far. An id may be another's later.
        self._statuses: dict[int, asyncio.Future[int]] = {}
        self._lives = True
        self._task = asyncio.create_task(self._listen())

    @property
    def lives(self) -> bool:
        return self._lives and self._process.lives

    async def fork(self) -> "tuple[socket.socket, Forked]":
        """Fork a process; one caller at a time. Raises OSError if the forking process is gone."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._process.end, [b"\0"], [theirs.fileno()])
            begun = await self._begun.get()
            if begun is None:
                raise ConnectionResetError("the process that forks for episodes ended")
        except OSError:
            ours.close()
            raise
        return ours, Forked(self._process.kind.what, *begun)

    async def close(self) -> None:
        self._process.stop()
        await self._process.ended()
        self._task.cancel()

    async def _listen(self) -> None:
        loop, data = asyncio.get_running_loop(), b""
        with contextlib.suppress(ConnectionError):
            while part := await loop.sock_recv(self._process.end, 4096):
                data += part
                while len(data) >= _RECORD.size:
                    ended, pid, status = _RECORD.unpack_from(data)
                    data = data[_RECORD.size :]
                    future = self._status(pid)
                    if ended:
                        future.set_result(status)
                    else:
                        self._begun.put_nowait((pid, future))
        self._lives = False
        self._begun.put_nowait(None)
        for future in self._statuses.values():  # they end with it
            if not future.done():
                future.set_result(signal.SIGKILL)

    def _status(self, pid: int) -> "asyncio.Future[int]":
        """Future of a process's status; its end may be reported before its begin."""
        known = self._statuses.pop(pid, None)
        if known is not None:
            return known
        return self._statuses.setdefault(pid, asyncio.get_running_loop().create_future())


class Forked:
    """A process that was forked for an episode by another process."""

    def __init__(self, what: str, pid: int, status: "asyncio.Future[int]") -> None:
        self._what, self.pid, self._status = what, pid, status
        self._pidfd: int | None = None
        with contextlib.suppress(AttributeError, OSError):  # not Linux, or gone already
            self._pidfd = os.pidfd_open(pid)

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
                status = await asyncio.shield(self._status)
        except TimeoutError:
            return f"the {self._what} closed its socket", False
        return ended_with(self._what, os.waitstatus_to_exitcode(status))
