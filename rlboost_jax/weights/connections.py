"""Connections to a run's file server, and how long something is tried over them."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import aiohttp

from rlboost_jax.platform.congestion import dialling_socket
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.weights.pieces import MOST_CONNECTIONS

DOWNLOADS: Final = 2_048  # connections of all servers that the file server takes at a time
KEPT_SECONDS: Final = 25.0  # between two downloads: a little less than `gate.KEEP_ALIVE_SECONDS`


@dataclass(frozen=True, kw_only=True)
class Retries:
    """Limits on retrying a piece of a download.

    Attributes:
        attempts: in a row that brought next to nothing, broken connections included.
        first_backoff_seconds: doubles with each of them: 3 s in all.
        silence_seconds: of a connection before it counts as broken.
    """

    attempts: int = 6
    first_backoff_seconds: float = 0.1
    silence_seconds: float = 10.0


RETRIES: Final = Retries()


def connections_each(servers: int) -> int:
    """How many connections each of so many servers may use, so that `DOWNLOADS` suffice for all."""
    return max(1, min(MOST_CONNECTIONS, DOWNLOADS // max(1, servers)))


class Connections:
    """Connections to a file server, as many as a download may use.

    Within `async with` they are kept from one download to the next, which saves the two round trips
    of TCP and TLS; else they end with their download.

    Args:
        most: at a time; see `connections_each`.
    """

    def __init__(self, retries: Retries = RETRIES, *, most: int = MOST_CONNECTIONS) -> None:
        self._retries, self._most = retries, most
        self._keeps = False
        self._kept: tuple[str, aiohttp.ClientSession] | None = None  # and the address

    async def __aenter__(self) -> "Connections":
        self._keeps = True
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    @contextlib.asynccontextmanager
    async def to(self, server: Endpoint) -> AsyncIterator[tuple[aiohttp.ClientSession, Retries]]:
        if not self._keeps:
            async with self._session(server) as session:
                yield session, self._retries
            return
        if self._kept is None or self._kept[0] != server.address:
            await self._end()
            self._kept = server.address, self._session(server)
        yield self._kept[1], self._retries

    async def _end(self) -> None:
        if self._kept is not None:
            await self._kept[1].close()
            self._kept = None

    def _session(self, server: Endpoint) -> aiohttp.ClientSession:
        silence = self._retries.silence_seconds
        return aiohttp.ClientSession(
            server.url(),
            headers=server.headers,
            connector=aiohttp.TCPConnector(
                limit=self._most,
                ssl=server.tls,
                keepalive_timeout=KEPT_SECONDS,
                socket_factory=dialling_socket,
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_read=silence, sock_connect=silence),
            read_bufsize=2**20,
        )
