"""Start a relay, so that printing never waits for a reader.

A terminal under Ctrl-S, a pipe that nobody empties, an ssh session that hangs, a disk that does not
answer: a write to any of them may never return, in Python and in libraries that write to descriptor
2 on their own. So descriptors 1 and 2 become pipes to a process (`output_relay_process.py`) that
always reads, keeps what waits within bounds and says how many lines it had to drop. It is a process
and not a thread so that the last words of one that crashes are passed on, and so that no library
that prints under Python's lock can stand in its own way.

A relay that is killed has a successor, which reads the same pipes. Their reading ends are open here
too: what was printed meanwhile waits in them, and a child that prints never finds them broken.
"""

import atexit
import contextlib
import errno
import io
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final

from rlboost_jax.platform.closing import Closing
from rlboost_jax.platform.restarts import Again, Cause, End, Restarts, Stop, after_end

END_SECONDS: Final = 5.0  # for what still waits when a process ends
LEAVE_SECONDS: Final = 0.2  # for the relay to be gone then; whom we have started may hold it
AGAIN: Final = Restarts(most_starts=None, first_pause_seconds=0.02, longest_pause_seconds=1.0)
AT_ONCE_BYTES: Final = 512  # what can be written, can be written whole: POSIX' PIPE_BUF
PROGRAM: Final = Path(__file__).with_name("output_relay_process.py")

_running: "list[Relay]" = []  # of this process; at most one


class Relay(Closing):
    """A relay for this process's output. To be made before there are threads.

    Attributes:
        out, err: descriptors of where its words go in the end, for a child that has its own relay.
    """

    def __init__(self, end_seconds: float = END_SECONDS) -> None:
        """Start the relay; raises OSError, with all undone, if a process or thread cannot start."""
        self._seconds = end_seconds
        _flush()
        self.out, self.err = _copy(1), _copy(2)
        pairs = {1: os.pipe(), 2: os.pipe()}
        if _same(self.out, self.err):  # then their order is kept
            _close(*pairs[2])
            pairs[2] = pairs[1]
        # Where the words of each pipe go, by its reading end.
        self._targets = {pairs[2][0]: self.err, pairs[1][0]: self.out}
        writes = {pair[1] for pair in pairs.values()}
        self._lock = threading.Lock()  # of the process, and of whether another may follow it
        self._closing = threading.Event()
        try:
            self._process = self._started()
            self._keep_in_a_thread()
            for number, (_, end) in pairs.items():
                os.dup2(end, number)
        except OSError:
            _close(*self._targets, self.out, self.err)
            raise
        finally:
            _close(*writes)
        sys.stdout, sys.stderr = Relayed(1, self.out), Relayed(2, self.err)

    def close(self) -> None:
        """Pass on what was printed, for at most `end_seconds`; later words are lost."""
        with self._lock:
            self._closing.set()
        _flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(nowhere, number)
        os.close(nowhere)
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        answer, seconds = self._process.stdout, self._seconds + LEAVE_SECONDS
        if select.select([answer], [], [], seconds)[0] and not os.read(answer.fileno(), 1):
            self._pass_on(seconds)  # it was killed
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_SECONDS)

    def _started(self) -> "subprocess.Popen[bytes]":
        """Start the relay's process; raises OSError."""
        routes = [f"{reads}:{target}" for reads, target in self._targets.items()]
        return subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(self._seconds), *routes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=[number for route in self._targets.items() for number in route],
            start_new_session=True,  # an interrupt in the terminal is not for it
        )

    def _keep_in_a_thread(self) -> None:
        """Start the thread of `_keep`; raises OSError, with the relay ended, if none is left."""
        try:
            threading.Thread(target=self._keep, name="relay", daemon=True).start()
        except RuntimeError as error:
            self._process.kill()
            with self._process:  # closes its pipes, and waits
                raise OSError(errno.EAGAIN, str(error)) from error

    def _keep(self) -> None:
        """Start another relay each time that one has ended, for as long as this process lives."""
        failed = 0
        while True:
            began = time.monotonic()
            self._process.wait()
            served = time.monotonic() - began
            end = End(cause=Cause.OUTSIDE, how="ended", served_seconds=served)
            match after_end("the relay", failed, end, AGAIN):
                case Again(failed=failed, seconds=seconds):
                    if self._closing.wait(seconds):
                        return
                case Stop():
                    return
            with self._lock, contextlib.suppress(OSError):  # no process can be started: later
                if self._closing.is_set():
                    return
                gone, self._process = self._process, self._started()
                for pipe in (gone.stdin, gone.stdout):
                    assert pipe is not None
                    pipe.close()

    def _pass_on(self, seconds: float) -> None:
        """Write what no relay has read, as far as it is accepted in time."""
        end = time.monotonic() + seconds
        for reads, target in self._targets.items():
            while select.select([reads], [], [], 0)[0]:
                left = max(0.0, end - time.monotonic())
                if not select.select([], [target], [], left)[1]:
                    break
                if not (data := os.read(reads, AT_ONCE_BYTES)):
                    break
                with contextlib.suppress(OSError):
                    os.write(target, data)


class Relayed(io.TextIOWrapper):
    """Standard output or error of a process that has a relay.

    Args:
        number: descriptor that is written to.
        target: where its words go in the end.
    """

    def __init__(self, number: int, target: int) -> None:
        raw = _Pipe(number, "w", closefd=False)
        super().__init__(
            io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
        )
        self._target = target

    def isatty(self) -> bool:
        """Whether the final target is a terminal."""
        return os.isatty(self._target)

    def terminal_size(self) -> os.terminal_size:
        """Return the terminal's size; raises OSError where it is no terminal."""
        return os.get_terminal_size(self._target)


class _Pipe(io.FileIO):
    """A pipe whose failed writes are ignored: the relay may have been killed."""

    def write(self, data: "io.ReadableBuffer", /) -> int:  # type: ignore[name-defined]
        try:
            return super().write(data)
        except OSError:
            return memoryview(data).nbytes


def speak_through_relay(end_seconds: float = END_SECONDS) -> Relay | None:
    """Have this process speak through a relay until it ends; None where none can be started."""
    try:
        relay = Relay(end_seconds)
    except OSError:
        return None
    _running[:] = [relay]
    atexit.register(finish)  # called last, as the first that was registered
    return relay


def finish() -> None:
    """Pass on all that was printed, before an `os._exit`."""
    _flush()
    while _running:
        _running.pop().close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()


def _copy(number: int) -> int:
    """Duplicate a descriptor, or open the null device where it is closed."""
    try:
        return os.dup(number)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)


def _same(one: int, other: int) -> bool:
    first, second = os.fstat(one), os.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _close(*descriptors: int) -> None:
    for each in descriptors:
        os.close(each)
