"""What asyncio reports of connections while a host lacks something, said in a line now and then.

A process that has no descriptor left goes on with the connections that it has. Those that wait are
accepted once there is one; asyncio tries each second, as often as the queue is long, and would log
a traceback each time. So it would of each connection that it closes for want of memory.
"""

import asyncio
import logging
from typing import Any, Final

from rlboost_jax.host.exhaustion import exhausted

SAID_SECONDS: Final = 60.0  # between two lines

log = logging.getLogger(__name__)


def say_shortages(loop: asyncio.AbstractEventLoop) -> None:
    """From now on, of that loop; all else is reported as before."""
    said: dict[str, float] = {}  # when each line was, last

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        line = exhausted(error) if isinstance(error, OSError | MemoryError) else ""
        if not line:
            loop.default_exception_handler(context)
        elif line not in said or loop.time() >= said[line] + SAID_SECONDS:
            said[line] = loop.time()
            log.error("connections fail (%s): %s", context.get("message", ""), line)

    loop.set_exception_handler(report)
