"""Why a server cannot reach its manager, in one line: the name, the route, or no listener.

A provider reports the last line of a server's log where it can see one, so that this line stands in
the run's events, with the instance that never joined.
"""

import asyncio
import errno
import socket
from typing import Final

import aiohttp

REMEDY: Final = (
    "set fleet.public_address to HOST:PORT as this host reaches it, and manager.host to 0.0.0.0"
)
_NO_WAY: Final = frozenset(
    (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EACCES)
)


def dial_problem(error: BaseException, address: str) -> str:
    """Line on what went wrong, and which setting may help.

    Args:
        error: of an attempt to connect, or to be answered.
        address: HOST:PORT that was dialled.
    """
    host = address.rpartition(":")[0]
    if isinstance(error, asyncio.TimeoutError):
        return (
            f"no answer from {address}: a firewall drops it, or it is no address of this network; "
            f"{REMEDY}"
        )
    cause = getattr(error, "os_error", error)
    if isinstance(cause, socket.gaierror):
        return f"this host's DNS does not know {host!r} ({cause.strerror}); {REMEDY}"
    number = getattr(cause, "errno", None)
    if number == errno.ECONNREFUSED:
        return (
            f"nothing listens at {address}, or a firewall turns it away; is the run alive? "
            f"<workdir>/manager.json has its address; if another host must use another: {REMEDY}"
        )
    if number in _NO_WAY:
        return f"there is no way from this host to {address} ({cause}); {REMEDY}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return f"{address} hung up; is it a rlboost-jax manager?"
    return f"no manager answers ({error}); is the run alive? <workdir>/manager.json has its address"
