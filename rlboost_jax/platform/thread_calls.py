"""Calls in threads that an awaiting task outlives."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(call: Callable[[], T]) -> T:
    """Run a call in a thread, and end only when it has ended.

    Cancellations wait for it: what it writes to may be given to somebody else after this.
    """
    return await ended(asyncio.get_running_loop().run_in_executor(None, call))


async def ended(running: asyncio.Future[T]) -> T:
    """Return what becomes of a call that nobody cancels: cancellations wait for its end."""
    cancelled: asyncio.CancelledError | None = None
    try:
        while not running.done():
            try:
                await asyncio.wait({running})
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            running.exception()  # of a call that nobody waits for
            raise cancelled
        return running.result()
    finally:
        del running, cancelled  # their errors hold this frame
