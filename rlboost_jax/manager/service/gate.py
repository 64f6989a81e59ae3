"""The listening socket: how many may connect, and how long they may say nothing of use.

aiohttp waits for ever for a request to begin or to end. Here a connection that has not shown
a token in time is ended. If too many have not shown one yet, the oldest is ended first: it takes
more than open connections to keep a fleet out.
"""

import asyncio
import logging
import resource
import socket
import ssl
from collections import OrderedDict
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

NEWCOMER_SECONDS: Final = 10.0  # from the connection to the first request with a token
HANDSHAKE_SECONDS: Final = 5.0  # of TLS
KEEP_ALIVE_SECONDS: Final = 30.0  # between two requests
LINGERING_SECONDS: Final = 1.0  # for the rest of a request that nobody reads
MAX_NEWCOMERS: Final = 256
MAX_CONNECTIONS: Final = 8_000  # a stream and four downloads each of the largest fleet, and more
SPARE_FILES: Final = 100  # descriptors for all that is not a connection
MAX_LINE_BYTES: Final = 4_096  # of a request's first line and of a header; ours are short
MAX_HEADERS: Final = 32
BACKLOG: Final = 1_024  # connections that wait while there is no process to take them

# What a runner must be made with, for the limits that aiohttp keeps itself.
RUNNER_OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "keepalive_timeout": KEEP_ALIVE_SECONDS,
    "lingering_time": LINGERING_SECONDS,
    "max_line_size": MAX_LINE_BYTES,
    "max_field_size": MAX_LINE_BYTES,
    "max_headers": MAX_HEADERS,
    "auto_decompress": False,  # of bodies, which nobody reads: a small one may become a large one
}


class Gate:
    """Makes the connections of one listening socket.

    Args:
        max_connections: open ones; more are hung up on at once.
    """

    def __init__(
        self,
        *,
        max_connections: int = MAX_CONNECTIONS,
        max_newcomers: int = MAX_NEWCOMERS,
        newcomer_seconds: float = NEWCOMER_SECONDS,
        handshake_seconds: float = HANDSHAKE_SECONDS,
    ) -> None:
        self._max_connections, self._max_newcomers = max_connections, max_newcomers
        self._newcomer_seconds, self._handshake_seconds = newcomer_seconds, handshake_seconds
        self._newcomers: OrderedDict[Any, asyncio.TimerHandle] = OrderedDict()
        logging.getLogger("aiohttp.server").addFilter(_not_for_the_log)

    async def listen(
        self, server: web.Server, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """Raises OSError where the address cannot be had."""
        return await self._listen(server, tls, host=host, port=port, reuse_address=True)

    async def listen_on(
        self, server: web.Server, listener: socket.socket, tls: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """The same with a socket that listens already."""
        return await self._listen(server, tls, sock=listener, backlog=BACKLOG)

    def admit(self, connection: Any) -> None:
        """It has shown a token: from now on it may be silent for as long as its route allows."""
        if (timer := self._newcomers.pop(connection, None)) is not None:
            timer.cancel()

    async def _listen(
        self, server: web.Server, tls: ssl.SSLContext | None, **where: Any
    ) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        timeout = self._handshake_seconds if tls is not None else None

        def connect() -> asyncio.BaseProtocol:
            return self._connect(server, loop)

        return await loop.create_server(connect, ssl=tls, ssl_handshake_timeout=timeout, **where)

    def _connect(self, server: web.Server, loop: asyncio.AbstractEventLoop) -> asyncio.BaseProtocol:
        if len(server.connections) >= self._max_connections:
            return _HangUp()
        connection = server()
        timer = loop.call_later(self._newcomer_seconds, self._drop, connection)
        self._newcomers[connection] = timer
        if len(self._newcomers) > self._max_newcomers:
            self._drop(next(iter(self._newcomers)))
        return connection

    def _drop(self, connection: Any) -> None:
        self._newcomers.pop(connection).cancel()
        connection.force_close()  # does nothing to one that has ended


class _HangUp(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.abort()


def max_connections() -> int:
    """As many as this process may have open, after it has asked for all that it can get."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_CONNECTIONS + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return max(1, min(MAX_CONNECTIONS, soft - SPARE_FILES))


def _not_for_the_log(record: logging.LogRecord) -> bool:
    """Anyone may send what is no HTTP, or vanish in the middle of it; a traceback for each would
    fill the disk."""
    error = record.exc_info[1] if record.exc_info else None
    harmless = HttpProcessingError | web.RequestPayloadError | ConnectionError
    return not isinstance(error, harmless)
