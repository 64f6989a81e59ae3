"""Handling of asyncio's connection errors while a host lacks descriptors or memory.

A process that has no descriptor left goes on with the connections that it has. Those that wait are
accepted once there is one; asyncio tries each second, as often as the queue is long, and would log
a traceback each time: a line now and then says it.

A process that has no memory left goes on with nothing: it closes the connections that it has, and
no handshake of another succeeds. It is to end: another manager goes on from its journal.
"""

import asyncio
import errno
import logging
from collections.abc import Callable
from typing import Any, Final

from rlboost_jax.platform.exhaustion import exhausted, number_of

SAID_SECONDS: Final = 60.0  # between two lines

log = logging.getLogger(__name__)


def meet_shortages(loop: asyncio.AbstractEventLoop, end: Callable[[Exception], None]) -> None:
    """Handle shortages in the event loop; other errors are reported as before.

    Args:
        end: this process; may be called several times.
    """
    said: dict[str, float] = {}  # when each line was, last

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        line = exhausted(error) if isinstance(error, OSError | MemoryError) else ""
        if not isinstance(error, Exception) or not line:
            loop.default_exception_handler(context)
            return
        if line not in said or loop.time() >= said[line] + SAID_SECONDS:
            said[line] = loop.time()
            log.error("connections fail (%s): %s", context.get("message", ""), line)
        if number_of(error) == errno.ENOMEM:
            end(error)

    loop.set_exception_handler(report)
