"""Host names a listener answers to, where a browser could reach it.

Any site can have its own name lead to an address of this host (DNS rebinding): its script then
reads, as from its own site, whatever answers there. So a request must name this host. An address
in figures is no site's name.
"""

import ipaddress
import re
import socket
from collections.abc import Collection, Sequence
from typing import Final

from aiohttp import web

_PORT: Final = re.compile(r":\d*$")
LOCAL_HOSTS: Final = frozenset(("localhost", "127.0.0.1", "[::1]"))


def check_host(given: Sequence[str], allowed: Collection[str] | None, setting: str) -> None:
    """Refuse a request for another host.

    Args:
        given: values of the header `Host`.
        allowed: names beside those of this host; None: nothing but its loopback interface is meant.
        setting: that adds to them, for the line.

    Raises:
        HTTPMisdirectedRequest: it names none, several or another.
    """
    host = _PORT.sub("", given[0]).lower() if len(given) == 1 else ""
    if host in LOCAL_HOSTS:
        return
    if allowed is None:
        raise web.HTTPMisdirectedRequest(text="this socket is for localhost\n")
    if not (_is_address(host) or host == socket.gethostname().lower() or host in allowed):
        raise web.HTTPMisdirectedRequest(
            text=f"{host[:100]!r} is no name of this listener; if it is, add it to {setting}\n"
        )


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True
