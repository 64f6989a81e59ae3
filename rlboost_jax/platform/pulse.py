"""Signs that a trainer gets on, for its supervisor.

A trainer's main thread counts what it gets done (a micro-batch, a phase begun or over, something
heard of the fleet) in memory that it shares with its supervisor: no system call, no lock, no disk.
The number says that it gets on, the name beside it in what. Other threads do not count: they may
well go on while the main one stands still.
"""

import contextlib
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "RLBOOST_PULSE"  # in a trainer's environment: the descriptor of its memory
COMPILING: Final = "compiling"
ORDERS: Final = "waiting for process 0"
_RECORD: Final = struct.Struct("<QQ48s")  # signs so far, steps so far; the phase, in UTF-8


@dataclass(frozen=True, kw_only=True)
class Sign:
    """A trainer's progress at one moment."""

    count: int = 0  # grows with whatever is done
    steps: int = 0  # that this process has made
    phase: str = ""  # what it is in the middle of; "" before the first


class Pulse:
    """The trainer's side of the shared memory; calls by other threads than the main are ignored."""

    def __init__(self) -> None:
        """Count privately until `show`."""
        self._memory: mmap.mmap | bytearray = bytearray(_RECORD.size)
        self._count = self._steps = 0
        self._phases = ["starting"]

    def show(self, descriptor: int) -> None:
        """Share the counts through the memory of a descriptor.

        Raises:
            OSError, ValueError: it is no memory of a pulse.
        """
        self._memory = mmap.mmap(descriptor, _RECORD.size)
        self._write(self._phases[-1])

    def beat(self) -> None:
        """Count a piece of work done."""
        if _in_main_thread():
            self._write(self._phases[-1])

    def now(self, name: str) -> None:
        """Name the current phase, until another is named."""
        if _in_main_thread():
            self._phases[-1] = name
            self._write(name)

    def step(self) -> None:
        """Count a finished step."""
        self._steps += 1
        self.beat()

    def compiling(self) -> None:
        """Mark a compilation, until the next sign."""
        if _in_main_thread():
            self._write(COMPILING)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Name a phase for what is done within; its begin and its end are signs."""
        if not _in_main_thread():
            yield
            return
        self._phases.append(name)
        self._write(name)
        try:
            yield
        finally:
            self._phases.pop()
            self._write(self._phases[-1])

    def _write(self, phase: str) -> None:
        self._count += 1
        _RECORD.pack_into(self._memory, 0, self._count, self._steps, phase.encode()[:48])


PULSE: Final = Pulse()  # of this process, which has one main thread


def shared_memory() -> int:
    """Return a descriptor of memory for `Pulse.show` and `read_sign`.

    It has no name, and is on no disk where that is possible.
    """
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pulse")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _RECORD.size)
    return descriptor


def read_sign(descriptor: int) -> Sign:
    """Read the newest sign; while one is being written, parts may be of two."""
    count, steps, name = _RECORD.unpack(os.pread(descriptor, _RECORD.size, 0))
    return Sign(count=count, steps=steps, phase=name.rstrip(b"\0").decode(errors="replace"))


def show_pulse(environment: MutableMapping[str, str]) -> None:
    """Share progress with the supervisor that started this process, if any, but not a parent's."""
    descriptor = environment.pop(VARIABLE, None)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError):  # somebody else's variable
            PULSE.show(int(descriptor))
            os.close(int(descriptor))


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
