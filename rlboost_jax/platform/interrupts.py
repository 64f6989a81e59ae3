"""A signal that asks a process to end, as an exception where its main thread is.

Python drops what a handler raises in a callback of the collector (JAX has one, and a signal that
comes during a collection waits for it), around a fork (`logging` does something there) and in a
finalizer: it prints "Exception ignored in" and goes on. Of a trainer that traced programs one
request in a hundred was lost so. Here it comes again.
"""

import signal
import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

AGAIN_SECONDS: Final = 0.01  # by when Python has left what drops exceptions


def raise_at(signals: Iterable[int], make: Callable[[int], BaseException]) -> None:
    """Make each of the signals raise the exception that `make` returns; SIGALRM is used for it."""
    interrupts = _Interrupts(make, sys.unraisablehook)
    sys.unraisablehook = interrupts.dropped
    for number in (signal.SIGALRM, *signals):
        signal.signal(number, interrupts.hear)


class _Interrupts:
    def __init__(
        self,
        make: Callable[[int], BaseException],
        before: Callable[["UnraisableHookArgs"], object],
    ) -> None:
        """Pass all other dropped exceptions to `before`."""
        self._make, self._before = make, before
        self._number: int = signal.SIGALRM  # where that is the first to come
        self._raised: BaseException | None = None

    def hear(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGALRM:
            self._number = number
        if _of(_Interrupts.dropped, frame):  # what it raises there is dropped for good
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
            return
        self._raised = self._make(self._number)
        raise self._raised

    def dropped(self, said: "UnraisableHookArgs") -> None:
        if said.exc_value is not None and said.exc_value is self._raised:
            signal.setitimer(signal.ITIMER_REAL, AGAIN_SECONDS)
        else:
            self._before(said)


def _of(function: Callable[..., object], frame: FrameType | None) -> bool:
    """Whether a frame is that of a function, or of one that it has called."""
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None
