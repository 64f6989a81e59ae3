"""The wall clock of the processes of a run, as a test sets it (`clock.c`)."""

import contextlib
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path

import pytest

YEAR = 365 * 86_400
PAUSE_SECONDS = 0.05  # between two settings of a clock that jumps


@contextlib.contextmanager
def clock_of_our_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], None]]:
    """`set_clock(seconds)`: by which the clock of all that is started from now on is ahead."""
    library, file = folder / "clock.so", folder / "clock"
    source = Path(__file__).with_name("clock.c")
    subprocess.run(
        ["cc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=300
    )
    file.write_bytes(bytes(8))
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("RLBOOST_TEST_CLOCK", str(file))
    with open(file, "r+b", buffering=0) as clock:

        def set_clock(seconds: float) -> None:
            clock.seek(0)
            clock.write(struct.pack("<q", int(seconds * 1e9)))

        yield set_clock


@contextlib.contextmanager
def jumping(set_clock: Callable[[float], None]) -> Iterator[None]:
    """A year forward, a year back, to the truth and two hours behind, twenty times a second."""
    over = threading.Event()

    def jump() -> None:
        for seconds in cycle((YEAR, -YEAR, 0.0, -7200.0)):
            set_clock(seconds)
            if over.wait(PAUSE_SECONDS):
                return

    jumps = threading.Thread(target=jump, daemon=True)
    jumps.start()
    try:
        yield
    finally:
        over.set()
        jumps.join()
