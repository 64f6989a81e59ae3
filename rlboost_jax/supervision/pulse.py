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
    """What a trainer shows at one moment."""

    count: int = 0  # grows with whatever is done
    steps: int = 0  # that this process has made
    phase: str = ""  # what it is in the middle of; "" before the first


class Pulse:
    """The trainer's side; of other threads than the main one it takes no notice."""

    def __init__(self) -> None:
        """Nobody looks, before `show`."""
        self._memory: mmap.mmap | bytearray = bytearray(_RECORD.size)
        self._count = self._steps = 0
        self._phases = ["starting"]

    def show(self, descriptor: int) -> None:
        """Let a process that has the memory of this descriptor look.

        Raises:
            OSError, ValueError: it is no memory of a pulse.
        """
        self._memory = mmap.mmap(descriptor, _RECORD.size)
        self._write(self._phases[-1])

    def beat(self) -> None:
        """Something is done."""
        if _in_main_thread():
            self._write(self._phases[-1])

    def now(self, name: str) -> None:
        """It is in the middle of this until another is named."""
        if _in_main_thread():
            self._phases[-1] = name
            self._write(name)

    def step(self) -> None:
        """A step is."""
        self._steps += 1
        self.beat()

    def compiling(self) -> None:
        """A program is compiled until the next sign; nobody says when that is over."""
        if _in_main_thread():
            self._write(COMPILING)

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is done within is part of this; its begin and its end are signs."""
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
    """A descriptor of memory for `Pulse.show` and `read_sign`; without a name, and on no disk where
    that can be."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("pulse")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, _RECORD.size)
    return descriptor


def read_sign(descriptor: int) -> Sign:
    """The newest; of one that is being written now the parts may belong to two."""
    count, steps, name = _RECORD.unpack(os.pread(descriptor, _RECORD.size, 0))
    return Sign(count=count, steps=steps, phase=name.rstrip(b"\0").decode(errors="replace"))


def show_pulse(environment: MutableMapping[str, str]) -> None:
    """To the supervisor that has started this process, if one has; not that of its children."""
    descriptor = environment.pop(VARIABLE, None)
    if descriptor is not None:
        with contextlib.suppress(OSError, ValueError):  # somebody else's variable
            PULSE.show(int(descriptor))
            os.close(int(descriptor))


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
