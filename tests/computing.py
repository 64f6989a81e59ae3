"""Tests of what must end: a limit on computing, which is the same on a busy machine."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises AssertionError in the middle of what takes longer, in this process's own time."""

    def raise_error(*_: object) -> None:
        raise AssertionError(f"no end in {seconds:g} s of computation")

    before = signal.signal(signal.SIGVTALRM, raise_error)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
        signal.signal(signal.SIGVTALRM, before)
