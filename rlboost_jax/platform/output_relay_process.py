"""The relay's own process: it reads what another process prints, always, and passes it on.

    python -I -S passing.py SECONDS READ:WRITE ...

READ and WRITE are descriptors: the end of a pipe, and where its bytes belong. Standard input closes
when the other process has said all that it will, or is gone; a byte on standard output answers that
all of it is through, or that `SECONDS` are over. The process ends when nobody can write to its
pipes any more.

Invariants: reading never waits for writing; what waits is bounded, the oldest goes first, and the
number of lines that went is written where they are missing.

Nothing but the standard library is imported: this is to be there within milliseconds.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import threading
import time
from collections import deque

MAX_WAITING = 2**20  # bytes of each stream
READ_BYTES = 2**16
LOOK_SECONDS = 0.005  # between two looks, at the end
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # they are for those who print


class RelayedStream:
    """Copying of one pipe's bytes to their target, by two threads.

    Args:
        source, target: descriptors.
        most: bytes that may wait; more than `READ_BYTES`.
    """

    def __init__(self, source: int, target: int, most: int = MAX_WAITING) -> None:
        self._source, self._target, self._most = source, target, most
        self._changed = threading.Condition()  # of all below
        self._waiting: deque[bytes] = deque()
        self._size = 0  # bytes of it
        self._dropped = 0  # lines that went since the last were written
        self._torn = False  # the last that went is half a line: the other half is to go too
        self._writing = False
        self.ended = False  # nobody can write to the pipe any more
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        threading.Thread(target=self._write, daemon=True).start()

    @property
    def idle(self) -> bool:
        """Whether all that was printed so far is written."""
        with self._changed:
            unread = not self.ended and select.select([self._source], [], [], 0)[0]
            return not (self._writing or self._waiting or unread)

    def _read(self) -> None:
        while not self.ended:
            select.select([self._source], [], [])
            with self._changed:  # read and taken in at once, or `idle` would miss what is between
                data = os.read(self._source, READ_BYTES)
                self._waiting.append(data)
                self._size += len(data)
                self._drop()
                self.ended = not data
                self._dropped += self.ended and self._torn  # its other half will never come
                self._changed.notify()

    def _drop(self) -> None:
        while (full := self._size > self._most) or (self._torn and self._size):
            gone = self._waiting.popleft()
            if not full and (end := gone.find(b"\n") + 1):
                self._waiting.appendleft(gone[end:])
                gone = gone[:end]
            self._size -= len(gone)
            self._dropped += gone.count(b"\n")
            self._torn = not gone.endswith(b"\n")
        if not self._waiting:  # the writer is to say what is missing
            self._waiting.append(b"")

    def _write(self) -> None:
        begun = False  # in the middle of a line
        while True:
            with self._changed:
                self._writing = False
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
                self._size -= len(data)
                dropped, self._dropped = self._dropped, 0
                self._writing = True
            if dropped:
                lines = f"{dropped:,} lines were" if dropped > 1 else "1 line was"
                said = f"[{lines} dropped here: nobody read them]\n".encode()
                data = b"\n" * begun + said + data
            if not data:
                continue
            begun = not data.endswith(b"\n")
            if not self._written(data):
                with self._changed:
                    self._dropped += dropped + data.count(b"\n") - (dropped > 0)

    def _written(self, data: bytes) -> bool:
        """Write, however long it takes; False where it fails."""
        left = memoryview(data)
        while left:
            try:
                left = left[os.write(self._target, left) :]
            except OSError as error:
                if error.errno != errno.EAGAIN:  # a full disk, or nobody is there any more
                    return False
                select.select([], [self._target], [])
        return True


def settle(streams: list[RelayedStream], seconds: float) -> None:
    """Wait until all is written, at most so long."""
    end = time.monotonic() + seconds
    while not all(stream.idle for stream in streams) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)


def main(arguments: list[str]) -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    seconds = float(arguments[0])
    streams = [RelayedStream(*map(int, pair.split(":"))) for pair in arguments[1:]]
    while os.read(0, READ_BYTES):
        pass
    settle(streams, seconds)
    with contextlib.suppress(OSError):
        os.write(1, b".")
    for stream in streams:
        stream.reader.join()
    settle(streams, seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
    os._exit(0)  # a thread may be in a write that never ends
