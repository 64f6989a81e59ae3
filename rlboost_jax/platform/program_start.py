"""Start a program from an event loop, whose end may come in the middle of that.

`asyncio.run` ends by cancelling all tasks, among them one of asyncio's own that connects the pipes
of a process being started. In Python 3.11 and 3.12 the start then kills that process and waits for
a word that never comes, and so does `asyncio.run`: a manager that breaks at that moment would
stay, with its lock and its port, and nobody would follow it.

Source: github.com/python/cpython/issues/125502.
"""

import asyncio
import contextlib
from asyncio.subprocess import Process
from typing import Any, Final

GIVE_UP_SECONDS: Final = 1.0


async def start_program(
    *words: str, give_up_seconds: float = GIVE_UP_SECONDS, **options: Any
) -> Process:
    """`asyncio.create_subprocess_exec`; cancelled it ends soon, and leaves no process.

    Args:
        give_up_seconds: for a start to end that was cancelled: the process is killed by then.

    Raises:
        OSError, ValueError: it cannot be started.
    """
    starting = asyncio.create_task(asyncio.create_subprocess_exec(*words, **options))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        starting.cancel()
        await asyncio.wait([starting], timeout=give_up_seconds)
        starting.cancel()  # where it still waits it leaves at the second time
        await asyncio.wait([starting])
        if not starting.cancelled() and starting.exception() is None:  # it was just done
            await _ended(starting.result(), give_up_seconds)
        raise


async def _ended(process: Process, seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    with contextlib.suppress(TimeoutError):  # children of its own may hold its pipes
        async with asyncio.timeout(seconds):
            await process.wait()
