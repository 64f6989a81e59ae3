"""A trainer whose host has no memory is left at once, whichever of its threads finds out.

A thread that finds none while it starts, or a callback of a library, tells nobody who waits for it
(CPython's `Thread.start` is one that then waits for good): the run would stand still, and its
fleet be paid for. Left in the middle it loses what a kill costs.
"""

import errno
import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NoReturn

from rlboost_jax.platform import exits
from rlboost_jax.platform.exhaustion import exhausted, number_of


def leave_without_memory() -> None:
    """End the process from now on where a lack of memory would only be printed."""
    sys.unraisablehook = _hook(sys.unraisablehook)
    threading.excepthook = _hook(threading.excepthook)


def _hook(before: Callable[[Any], object]) -> Callable[[Any], None]:
    def found(said: Any) -> None:
        if said.exc_value is not None and _no_memory(said.exc_value):
            _leave(said.exc_value)
        before(said)

    return found


def _no_memory(error: BaseException) -> bool:
    """Whether memory is lacking, also for a thread; a busy socket or lock has the same number."""
    return not isinstance(error, BlockingIOError) and number_of(error) in (
        errno.ENOMEM,
        errno.EAGAIN,
    )


def _leave(error: BaseException) -> NoReturn:
    try:
        exits.leave(f"error: {exhausted(error)}", exits.BROKEN, at_once=True)
    finally:
        os._exit(exits.BROKEN)  # without even the memory to say so
