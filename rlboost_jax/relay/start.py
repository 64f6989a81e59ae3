"""Start a relay, so that printing never waits for a reader.

A terminal under Ctrl-S, a pipe that nobody empties, an ssh session that hangs, a disk that does not
answer: a write to any of them may never return, in Python and in libraries that write to
descriptor 2 on their own. So descriptors 1 and 2 become pipes to a process (`passing.py`) that
always reads, keeps what waits within bounds and says how many lines it had to drop. It is a process
and not a thread so that the last words of one that crashes are passed on, and so that no library
that prints under Python's lock can stand in its own way.
"""

import atexit
import contextlib
import io
import os
import select
import subprocess
import sys
from pathlib import Path
from typing import Final

from rlboost_jax.closing import Closing

END_SECONDS: Final = 5.0  # for what still waits when a process ends
LEAVE_SECONDS: Final = 0.2  # for the relay to be gone then; whom we have started may hold it
PROGRAM: Final = Path(__file__).with_name("passing.py")

_running: "list[Relay]" = []  # of this process; at most one


class Relay(Closing):
    """Of this process. To be made before there are threads.

    Attributes:
        out, err: descriptors of where its words go in the end, for a child that has its own relay.
    """

    def __init__(self, end_seconds: float = END_SECONDS) -> None:
        """Raises OSError where no process can be started; all is as it was, then."""
        self._seconds = end_seconds
        _flush()
        self.out, self.err = _copy(1), _copy(2)
        pairs = {1: os.pipe(), 2: os.pipe()}
        if _same(self.out, self.err):  # then their order is kept
            _close(*pairs[2])
            pairs[2] = pairs[1]
        ends = {pairs[number]: target for number, target in ((2, self.err), (1, self.out))}
        routes = [f"{reads}:{target}" for (reads, _), target in ends.items()]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(PROGRAM), str(end_seconds), *routes],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[
                    number for (reads, _), target in ends.items() for number in (reads, target)
                ],
                start_new_session=True,  # an interrupt in the terminal is not for it
            )
            for number, (_, writes) in pairs.items():
                os.dup2(writes, number)
        finally:
            for pair in ends:
                _close(*pair)
        sys.stdout, sys.stderr = Relayed(1, self.out), Relayed(2, self.err)

    def close(self) -> None:
        """What was printed is passed on, for as long as `end_seconds`; later words are lost."""
        _flush()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):
            os.dup2(nowhere, number)
        os.close(nowhere)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        select.select([self._process.stdout], [], [], self._seconds + LEAVE_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_SECONDS)


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
        """Whether a person reads it in the end."""
        return os.isatty(self._target)

    def terminal_size(self) -> os.terminal_size:
        """Raises OSError where it is no terminal."""
        return os.get_terminal_size(self._target)


class _Pipe(io.FileIO):
    """What cannot be said is no reason to end: the relay may have been killed."""

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
    """Have all that was printed passed on; before `os._exit`, which asks nobody."""
    _flush()
    while _running:
        _running.pop().close()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
            stream.flush()


def _copy(number: int) -> int:
    """Of a descriptor; of nowhere, where it is closed."""
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
