"""The listening socket: how many may connect, and how long they may go without a request.

aiohttp waits for ever for a request to begin or to end, and asyncio knows nothing of a connection
before its TLS handshake is done. Here each connection is known from the moment it is accepted.
Until it has shown a credential it is a newcomer: newcomers have a small share of their own, with
the oldest hung up on when one more comes, and a deadline. So they never take the place of anybody
who has shown one, however many they are. See `listener_limits.py`.
"""

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections import Counter, OrderedDict
from dataclasses import replace
from typing import Any, Final

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from rlboost_jax.platform.congestion import send_by_rate
from rlboost_jax.trust.listener_limits import OWNER, READ_BYTES, ByteBudget, ListenerLimits

NEWCOMER_SECONDS: Final = 10.0  # from the connection to the first request with a token
HANDSHAKE_SECONDS: Final = 10.0  # of TLS, on a line that loses packets
KEEP_ALIVE_SECONDS: Final = 30.0  # between two requests
LINGERING_SECONDS: Final = 1.0  # for the rest of a request that nobody reads
MAX_NEWCOMERS: Final = 256
MAX_CONNECTIONS: Final = 8_000  # a stream and four downloads each of the largest fleet, and more
SPARE_FILES: Final = 100  # descriptors for all that is not a connection
MAX_LINE_BYTES: Final = 4_096  # of a request's first line and of a header; ours are short
MAX_HEADERS: Final = 32
BACKLOG: Final = 1_024  # connections that wait while there is no process to take them
FRAME_HEADER_BYTES: Final = 14  # of a WebSocket's, at the most
WRITE_BYTES: Final = 2**16  # not yet taken by the system, after which a sender waits
RETRY_AFTER: Final = {"Retry-After": "1"}

# What a runner must be made with, for the limits that aiohttp keeps itself.
RUNNER_OPTIONS: Final[dict[str, Any]] = {
    "access_log": None,
    "keepalive_timeout": KEEP_ALIVE_SECONDS,
    "lingering_time": LINGERING_SECONDS,
    "max_line_size": MAX_LINE_BYTES,
    "max_field_size": MAX_LINE_BYTES,
    "max_headers": MAX_HEADERS,
    "read_bufsize": READ_BYTES,
    "auto_decompress": False,  # of bodies, which nobody reads: a small one may become a large one
}

log: Final = logging.getLogger(__name__)


class Gate:
    """Makes the connections of one listening socket.

    Args:
        limits: of the listener. `connections` is lowered to what this process may have open.
    """

    def __init__(self, limits: ListenerLimits) -> None:
        most = max_connections(limits.connections + limits.newcomers)
        newcomers = max(1, min(limits.newcomers, most // 4))
        connections = max(1, min(limits.connections, most - newcomers))
        self.limits = replace(
            limits,
            connections=connections,
            credential_connections=min(limits.credential_connections, connections),
            newcomers=newcomers,
        )
        self._newcomers: OrderedDict[_Connection, asyncio.TimerHandle] = OrderedDict()
        self._admitted: dict[_Connection, str] = {}  # with the credential that was shown last
        self._by_handler: dict[Any, _Connection] = {}
        self._credentials: Counter[str] = Counter()  # connections of each
        self._handshakes: set[asyncio.Task[None]] = set()
        self.budget = ByteBudget(self.limits)  # of frames that were not handed over yet
        self._unfinished: OrderedDict[_Connection, None] = OrderedDict()  # the oldest first
        logging.getLogger("aiohttp.server").addFilter(_not_for_the_log)

    async def listen(
        self, server: web.Server, host: str, port: int, tls: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """Listen on an address. Raises OSError if it is not available."""
        return await self._listen(server, tls, host=host, port=port, reuse_address=True)

    async def listen_on(
        self, server: web.Server, listener: socket.socket, tls: ssl.SSLContext | None = None
    ) -> asyncio.Server:
        """Serve on a socket that already listens."""
        return await self._listen(server, tls, sock=listener, backlog=BACKLOG)

    def admit(self, handler: Any, credential: str = OWNER) -> None:
        """Mark a connection as authenticated: it may be silent from now on.

        Args:
            handler: `request.protocol`.
            credential: a name for it, the same for all who have the same.

        Raises:
            HTTPServiceUnavailable: there are as many connections as there may be.
            HTTPTooManyRequests: … of that credential.
        """
        connection = self._by_handler.get(handler)
        if connection is None or self._admitted.get(connection) == credential:
            return  # it has ended meanwhile, or is known
        limits = self.limits
        if connection not in self._admitted and len(self._admitted) >= limits.connections:
            raise web.HTTPServiceUnavailable(
                text=f"the {limits.name} has {limits.connections} connections, the most it takes; "
                "try again later\n",
                headers=RETRY_AFTER,
            )
        if credential != OWNER and self._credentials[credential] >= limits.credential_connections:
            raise web.HTTPTooManyRequests(
                text=f"{limits.credential_connections} connections of this token are open, the "
                f"most that the {limits.name} takes; use fewer, or try again later\n",
                headers=RETRY_AFTER,
            )
        self._forget(connection)
        self._admitted[connection] = credential
        self._credentials[credential] += 1

    def count_frames(self, handler: Any) -> None:
        """Treat further bytes of a connection as frames, each reported to `heard`."""
        if (connection := self._by_handler.get(handler)) is not None:
            connection.unheard = 0

    def heard(self, handler: Any, size: int) -> None:
        """Record that a frame of `size` bytes was handed over."""
        connection = self._by_handler.get(handler)
        if connection is not None and connection.unheard:
            self._give(connection, min(connection.unheard, size + FRAME_HEADER_BYTES))
            if connection.unheard:  # of the next one, which began just now
                self._unfinished.move_to_end(connection)

    def _arrives(self, connection: "_Connection", size: int) -> bool:
        """Count received bytes of unfinished frames; False: this connection was hung up on.

        If they are too many, the connection whose frame began longest ago is hung up on: an honest
        peer soon completes what it begins.
        """
        credential = self._admitted.get(connection, OWNER)
        while self.budget.take(credential, size):
            alike = (c for c in self._unfinished if self._admitted.get(c, OWNER) == credential)
            oldest = next(alike, connection)
            log.error(
                "the %s hangs up on a connection: %d bytes of a frame that does not end, and %d "
                "in sum",
                *(self.limits.name, oldest.unheard or size, self.budget.total),
            )
            self._give(oldest, oldest.unheard or 0)
            oldest.unheard = None
            oldest.abort()
            if oldest is connection:
                return False
        self._unfinished.setdefault(connection)
        assert connection.unheard is not None
        connection.unheard += size
        return True

    def _give(self, connection: "_Connection", size: int) -> None:
        if size:
            assert connection.unheard is not None
            connection.unheard -= size
            self.budget.give(self._admitted.get(connection, OWNER), size)
        if not connection.unheard:
            self._unfinished.pop(connection, None)

    async def _listen(
        self, server: web.Server, tls: ssl.SSLContext | None, **where: Any
    ) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        made = await loop.create_server(lambda: _Connection(self, server, tls), **where)
        for listener in made.sockets:
            send_by_rate(listener)
        return made

    def _arrived(self, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        if len(self._newcomers) >= self.limits.newcomers:
            oldest = next(iter(self._newcomers))
            self._forget(oldest)
            oldest.abort()
        timer = loop.call_later(self.limits.newcomer_seconds, self._late, connection)
        self._newcomers[connection] = timer

    def _late(self, connection: "_Connection") -> None:
        """End a connection that is past its deadline.

        It counts until closed: a response may be in transit.
        """
        loop = asyncio.get_running_loop()
        self._newcomers[connection] = loop.call_later(LINGERING_SECONDS, connection.abort)
        connection.end()

    def _forget(self, connection: "_Connection") -> None:
        """Stop counting a connection that has closed or changed its kind."""
        self._give(connection, connection.unheard or 0)
        if (timer := self._newcomers.pop(connection, None)) is not None:
            timer.cancel()
        if (credential := self._admitted.pop(connection, None)) is not None:
            self._credentials[credential] -= 1
            self._credentials += Counter()  # without those that have none


class _Connection(asyncio.Protocol):
    """One connection, from the moment it is accepted, with aiohttp's handler behind it."""

    def __init__(self, gate: Gate, server: web.Server, tls: ssl.SSLContext | None) -> None:
        self._gate, self._server, self._tls = gate, server, tls
        self._socket: asyncio.Transport | None = None  # what is below TLS
        self._handler: Any = None
        self._early: list[bytes] = []  # came with the end of the handshake
        self._lost = False
        self.unheard: int | None = None  # bytes of frames not handed over; None: not counted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._socket = transport
        self._gate._arrived(self)
        if self._tls is None:
            self._begin(transport)
            return
        transport.pause_reading()
        task = asyncio.create_task(self._shake_hands(transport, self._tls))
        self._gate._handshakes.add(task)
        task.add_done_callback(self._gate._handshakes.discard)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        self._gate._forget(self)
        if self._handler is not None:
            self._gate._by_handler.pop(self._handler, None)
            self._handler.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.unheard is not None and not self._gate._arrives(self, len(data)):
            return
        if self._handler is None:
            self._early.append(data)
        else:
            self._handler.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._handler is None else self._handler.eof_received()

    def pause_writing(self) -> None:
        if self._handler is not None:
            self._handler.pause_writing()

    def resume_writing(self) -> None:
        if self._handler is not None:
            self._handler.resume_writing()

    def end(self) -> None:
        """Send a last response if one is due, then hang up."""
        if self._handler is None:
            self.abort()
        else:
            self._handler.force_close()  # does nothing to one that has ended

    def abort(self) -> None:
        """Hang up at once, even in the middle of a handshake."""
        if self._socket is not None:
            self._socket.abort()

    async def _shake_hands(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        loop = asyncio.get_running_loop()
        seconds = self._gate.limits.handshake_seconds
        transport: asyncio.Transport | None = None
        with contextlib.suppress(OSError):  # a stranger, or gone
            transport = await loop.start_tls(
                plain, self, tls, server_side=True, ssl_handshake_timeout=seconds
            )
        if transport is None or self._lost:
            plain.abort()
            self._gate._forget(self)  # nobody reports the end of what has not begun
        else:
            self._begin(transport)

    def _begin(self, transport: asyncio.Transport) -> None:
        transport.set_write_buffer_limits(high=WRITE_BYTES)  # half a mebibyte with TLS otherwise
        self._handler = self._server()
        self._gate._by_handler[self._handler] = self
        self._handler.connection_made(transport)
        for data in self._early:
            self._handler.data_received(data)
        self._early.clear()


def max_connections(wanted: int) -> int:
    """Number of connections this process may have open, at most `wanted`.

    Raises its limit first.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = wanted + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < files:
        soft = files if hard == resource.RLIM_INFINITY else min(files, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(2, min(wanted, soft - SPARE_FILES))


def _not_for_the_log(record: logging.LogRecord) -> bool:
    """Filter out tracebacks of clients that send no HTTP or disconnect midway.

    Anyone can cause them, and they would fill the disk.
    """
    error = record.exc_info[1] if record.exc_info else None
    harmless = HttpProcessingError | web.RequestPayloadError | ConnectionError
    return not isinstance(error, harmless)
