"""A process that forks others on request, as both sides see it.

Imports take most of a process's start; a fork of a process that has done them is at work at once.
The server has one thread, and nothing that does not survive a fork, such as a JAX backend.

Requests and reports are frames of a socket, whose other end is a `ForkClient`. Each process that
was started is reported as ended exactly once. At the end of the requests the server leaves.
"""

import asyncio
import contextlib
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, NoReturn, assert_never

import msgspec

from rlboost_jax.platform.frames import FrameDecoder, frame
from rlboost_jax.platform.process_liveness import end_with_parent

_READ_BYTES: Final = 2**16
_MOST_FILES: Final = 8  # that are read at a time


class ForkFrame(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all frames."""


class ForkRequest(ForkFrame, frozen=True, kw_only=True):
    """Fork a process.

    Attributes:
        name: no running process has it.
        env: variables that are added to the server's.
        log: the file that gets its output; "": the server's own.
        has_file: a file comes with the frame.
    """

    name: str
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    log: str = ""
    has_file: bool = False


class ForkSignal(ForkFrame, frozen=True, kw_only=True):
    """Send a signal to a process, if it still runs."""

    name: str
    number: int


class ForkServerReady(ForkFrame, frozen=True, kw_only=True):
    """First report of a server that says when it has imported."""


class ForkStarted(ForkFrame, frozen=True, kw_only=True):
    name: str
    pid: int


class ForkRefused(ForkFrame, frozen=True, kw_only=True):
    """The system has refused a process, or its log."""

    name: str
    reason: str


class ForkEnded(ForkFrame, frozen=True, kw_only=True):
    name: str
    code: int  # below 0: ended by that signal


ForkCommand = ForkRequest | ForkSignal
ForkReport = ForkServerReady | ForkStarted | ForkRefused | ForkEnded


class ForkServer:
    """The side that forks.

    Args:
        line: the socket of the requests.
        run: is called in each process, with the request and the descriptor of its file (-1: it has
            none); returns the exit code.
        together: processes end with the server (Linux only); else they live on.
        fork: the system's; raises OSError where there is no room for one process more.
    """

    def __init__(
        self,
        line: socket.socket,
        run: Callable[[ForkRequest, int], int],
        *,
        together: bool,
        fork: Callable[[], int] = os.fork,
    ) -> None:
        self._line, self._run, self._together, self._fork = line, run, together, fork
        self._pid = os.getpid()
        self._names: dict[int, str] = {}  # of running processes, by their ids
        self._files: deque[int] = deque()  # that came with requests
        self._wake: tuple[int, ...] = ()

    def serve(self) -> None:
        """Serve until the requests end."""
        # A signal's number arrives as a byte in this pipe: the loop below is the only code
        # that reaps, so that a child's death can never interrupt a fork or a report.
        self._wake = wake, woken = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(woken, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        commands: FrameDecoder[ForkCommand] = FrameDecoder(ForkCommand)  # type: ignore[arg-type]
        poll = select.poll()
        poll.register(self._line, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll()}
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, _READ_BYTES)
            self._reap()
            if self._line.fileno() in ready:
                data = self._received()
                if not data:
                    return
                for command in commands.take(data):
                    self._obey(command)

    def _received(self) -> bytes:
        try:
            data, files, _, _ = socket.recv_fds(self._line, _READ_BYTES, _MOST_FILES)
        except ConnectionError:  # the parent has ended without reading all reports
            return b""
        for file in files:
            os.set_inheritable(file, False)
        self._files += files
        return data

    def _obey(self, command: ForkCommand) -> None:
        match command:
            case ForkRequest():
                file = self._files.popleft() if command.has_file else -1
                try:
                    self._report(self._started(command, file))
                finally:
                    if file >= 0:
                        os.close(file)
            case ForkSignal(name=name, number=number):
                # Only processes not yet reaped are listed: no id here is another's by now.
                for pid, other in self._names.items():
                    if other == name:
                        os.kill(pid, number)
            case unknown:
                assert_never(unknown)

    def _started(self, request: ForkRequest, file: int) -> ForkStarted | ForkRefused:
        """Fork a process."""
        try:
            with open(request.log or os.devnull, "ab", buffering=0) as log:
                pid = self._fork()
                if pid == 0:
                    self._become(request, file, log.fileno())
        except OSError as error:
            return ForkRefused(name=request.name, reason=str(error))
        self._names[pid] = request.name
        return ForkStarted(name=request.name, pid=pid)

    def _become(self, request: ForkRequest, file: int, log: int) -> NoReturn:
        """Run the forked process, never returning into the server's loop."""
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._line.close()
            for descriptor in (*self._wake, *self._files):
                os.close(descriptor)
            if request.log:
                os.dup2(log, 1)
                os.dup2(log, 2)
            os.close(log)
            os.environ.update(request.env)
            if not self._together or end_with_parent(self._pid):
                code = self._run(request, file)
        finally:  # no exception goes further than this
            os._exit(code)

    def _reap(self) -> None:
        while self._names:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            name = self._names.pop(pid, None)
            if name is not None:
                self._report(ForkEnded(name=name, code=os.waitstatus_to_exitcode(status)))

    def _report(self, report: ForkReport) -> None:
        # Where nobody reads any more the end of the requests is near and ends the loop.
        with contextlib.suppress(ConnectionError):
            self._line.sendall(frame(report))


class ForkClient:
    """The side that asks for processes, in one event loop.

    Args:
        end: of the server's socket; its own from now on.
        hear: is given each report.
        over: is called once, behind the last report, with the mistake that ended the reading, if
            one did; not after `close`.
    """

    def __init__(
        self,
        end: socket.socket,
        *,
        hear: Callable[[ForkReport], None],
        over: Callable[[Exception | None], None],
    ) -> None:
        end.setblocking(False)
        self._end, self._hear, self._over = end, hear, over
        self._task = asyncio.create_task(self._listen())

    @property
    def lives(self) -> bool:
        """Whether there may be further reports."""
        return not self._task.done()

    def say(self, command: ForkCommand, file: socket.socket | None = None) -> None:
        """Send a command.

        Args:
            file: comes with a request that says so.

        Raises:
            OSError: the server is gone, or has read nothing for so long that it counts as gone.
        """
        data, files = frame(command), [] if file is None else [file.fileno()]
        try:
            sent = socket.send_fds(self._end, [data], files) if files else self._end.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self._end.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError("the process that forks reads no more requests")

    def end_requests(self) -> None:
        """Have the server leave."""
        with contextlib.suppress(OSError):
            self._end.shutdown(socket.SHUT_WR)

    async def close(self, seconds: float = 0.0) -> None:
        """Hear no further report than those of the next seconds."""
        await asyncio.wait([self._task], timeout=seconds)
        self._task.cancel()
        self._end.close()

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        reports: FrameDecoder[ForkReport] = FrameDecoder(ForkReport)  # type: ignore[arg-type]
        mistake: Exception | None = None
        try:
            while data := await loop.sock_recv(self._end, _READ_BYTES):
                for report in reports.take(data):
                    self._hear(report)
        except ConnectionError:
            pass
        except Exception as error:
            mistake = error
        self._over(mistake)
