"""The pieces that a server serves to others, over HTTP: which are there, and their bytes.

`GET /held/{root}?known=N` answers with a bit for each piece: at once without N, else as soon as
more than N are there, or after a while; `GET /pieces/{root}/{first}-{last}` with the bytes of
pieces one behind the other. Both need a transfer token for that version. Only as many are answered
at a time as keeps each of them fast; whoever comes then gets 503 and asks another server.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from mmap import mmap
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from aiohttp import web

from rlboost_jax.trust.credentials import bearer_of
from rlboost_jax.trust.gate import (
    HANDSHAKE_SECONDS,
    KEEP_ALIVE_SECONDS,
    NEWCOMER_SECONDS,
    RETRY_AFTER,
)
from rlboost_jax.trust.listener_limits import ListenerLimits
from rlboost_jax.trust.transfers import puller_of
from rlboost_jax.weights.peers.piece_orders import DropVersion, Held, Hold

CHUNK_BYTES: Final = 2**18
UPLOADS: Final = 16  # at a time
WATCH_SECONDS: Final = 2.0  # that a question waits for more pieces

PEER_LIMITS: Final = ListenerLimits(
    name="peers' port",
    connections=128,
    credential_connections=8,  # of one server
    connection_bytes=3 * 2**19,  # beside the usual, a chunk and the same encrypted
    newcomers=32,
    newcomer_seconds=NEWCOMER_SECONDS,
    handshake_seconds=HANDSHAKE_SECONDS,
    idle_seconds=KEEP_ALIVE_SECONDS,
    message_bytes=0,  # nobody sends a body
    credential_bytes=0,
    total_bytes=0,
)


class UploadPace:
    """Keeps all uploads together below a rate.

    Args:
        bytes_per_second: 0: no limit.
        clock: seconds.
    """

    def __init__(
        self, bytes_per_second: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._clock, self._free_at = bytes_per_second, clock, 0.0

    def wait(self, num_bytes: int) -> float:
        """Take room for so many bytes; returns the seconds to wait before they are sent."""
        if not self._rate:
            return 0.0
        now = self._clock()
        self._free_at = max(now, self._free_at) + num_bytes / self._rate
        return self._free_at - now


class _Version:
    def __init__(self, order: Hold, blocks: Mapping[int, mmap]) -> None:
        self.pieces = [
            np.ndarray(
                place.shape,
                np.uint8,
                buffer=blocks[place.block],
                offset=place.offset,
                strides=place.strides,
            )
            for place in order.places
        ]
        self.bits = bytearray((len(self.pieces) + 7) // 8)
        self.count = 0

    def add(self, numbers: tuple[int, ...]) -> None:
        for number in numbers:
            place, bit = number // 8, 1 << number % 8
            self.count += not self.bits[place] & bit
            self.bits[place] |= bit

    def has(self, first: int, last: int) -> bool:
        return first <= last < len(self.pieces) and all(
            self.bits[number // 8] >> number % 8 & 1 for number in range(first, last + 1)
        )


class ServedPieces:
    """The pieces that are there. To be used in one event loop."""

    def __init__(self) -> None:
        self._versions: dict[str, _Version] = {}
        self._changed = asyncio.Condition()

    async def obey(
        self, order: Hold | Held | DropVersion, blocks: Mapping[int, mmap] = MappingProxyType({})
    ) -> None:
        """Follow an order.

        Args:
            blocks: of shared memory, by number; those that the order names.
        """
        async with self._changed:
            match order:
                case Hold():
                    self._versions[order.root] = _Version(order, blocks)
                case Held(root=root, numbers=numbers):
                    if (version := self._versions.get(root)) is not None:
                        version.add(numbers)
                case DropVersion(root=root):
                    self._versions.pop(root, None)
            self._changed.notify_all()

    def find(self, root: str) -> _Version | None:
        return self._versions.get(root)

    async def watch(self, root: str, known: int, seconds: float) -> _Version | None:
        """A version once more than `known` of its pieces are there, or after so many seconds."""

        def more() -> bool:
            version = self._versions.get(root)
            return version is not None and (
                version.count > known or version.count == len(version.pieces)
            )

        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(more)
        except TimeoutError:
            pass
        return self._versions.get(root)


def piece_app(
    key: bytes,
    served: ServedPieces,
    admit: Callable[[Any, str], None] = lambda handler, name: None,
    *,
    pace: UploadPace | None = None,
    uploads: int = UPLOADS,
    watch_seconds: float = WATCH_SECONDS,
) -> web.Application:
    """Make the application that serves pieces.

    Args:
        key: of transfer tokens.
        admit: called with each connection that has shown one, and whose it is.
        uploads: at a time.
    """
    pace, under_way = pace or UploadPace(0.0), set[object]()

    @web.middleware
    async def authorize(request: web.Request, handler: Any) -> web.StreamResponse:
        root = request.match_info.get("root", "")
        puller = puller_of(bearer_of(request.headers), key, root)
        if puller is None:
            raise web.HTTPUnauthorized(text="no transfer token for this version\n")
        admit(request.protocol, puller)
        response: web.StreamResponse = await handler(request)
        return response

    async def held(request: web.Request) -> web.Response:
        said = request.query.get("known", "")
        known = int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else -1
        version = await served.watch(request.match_info["root"], known, watch_seconds)
        if version is None:
            raise web.HTTPNotFound(text="this version is not here\n")
        return web.Response(body=bytes(version.bits))

    async def pieces(request: web.Request) -> web.StreamResponse:
        first, last = int(request.match_info["first"]), int(request.match_info["last"])
        version = served.find(request.match_info["root"])
        if version is None or not version.has(first, last):
            raise web.HTTPNotFound(text="these pieces are not here\n")
        if len(under_way) >= uploads:
            raise web.HTTPServiceUnavailable(text="enough to do\n", headers=RETRY_AFTER)
        mark = object()
        under_way.add(mark)
        try:
            response = web.StreamResponse()
            response.content_length = sum(piece.size for piece in version.pieces[first : last + 1])
            await response.prepare(request)
            for piece in version.pieces[first : last + 1]:
                for chunk in _blocks(piece):
                    await asyncio.sleep(pace.wait(len(chunk)))
                    await response.write(chunk)
            await response.write_eof()
            return response
        finally:
            under_way.discard(mark)

    app = web.Application(middlewares=[authorize])
    app.router.add_get(r"/held/{root:[0-9a-f]{64}}", held, allow_head=False)
    where = r"/pieces/{root:[0-9a-f]{64}}/{first:\d{1,7}}-{last:\d{1,7}}"
    app.router.add_get(where, pieces, allow_head=False)
    return app


def _blocks(piece: np.ndarray) -> Iterator[memoryview]:
    """The bytes of a piece, some at a time."""
    if piece.flags.c_contiguous:
        data = piece.reshape(-1).data
        for at in range(0, len(data), CHUNK_BYTES):
            yield data[at : at + CHUNK_BYTES]
        return
    run = piece.shape[-1]  # bytes that follow each other
    runs, some = piece.view(f"V{run}").flat, max(1, CHUNK_BYTES // run)
    for first in range(0, piece.size // run, some):
        yield memoryview(runs[first : first + some].tobytes())
