"""Bytes that a listener's requests hold, counted before they are read and until they are answered.

A request over the sum waits for a moment and is then refused with 429: who asked may ask again.
Nothing is read of a body that waits, since aiohttp stops reading its connection.
"""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final

from aiohttp import web

from rlboost_jax.trust.gate import RETRY_AFTER
from rlboost_jax.trust.listener_limits import ByteBudget, ListenerLimits

WAIT_SECONDS: Final = 5.0  # for others to return what they hold
SEND_SECONDS: Final = 30.0  # a client that takes nothing for longer is hung up on


class BytesInFlight:
    """Account of the bytes that requests hold. To be used in one event loop.

    Args:
        wait_seconds: for bytes that others hold.
    """

    def __init__(self, limits: ListenerLimits, wait_seconds: float = WAIT_SECONDS) -> None:
        self.budget = ByteBudget(limits, self._freed)
        self._wait_seconds, self._changed = wait_seconds, asyncio.Event()

    @contextlib.contextmanager
    def held(self, credential: str) -> Iterator["HeldBytes"]:
        """Account for one request; all its bytes are returned at the end of the context."""
        held = HeldBytes(self, credential)
        try:
            yield held
        finally:
            held.give(held.size)

    async def take(self, credential: str, size: int) -> None:
        """Wait for room and hold `size` bytes. Raises HTTPTooManyRequests."""
        objection = self.budget.take(credential, size)
        if not objection:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._wait_seconds):
                while objection:
                    await self._changed.wait()
                    objection = self.budget.take(credential, size)
        if objection:
            raise web.HTTPTooManyRequests(text=f"{objection}\n", headers=RETRY_AFTER)

    def _freed(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class HeldBytes:
    """Bytes that one request holds. Made by `BytesInFlight.held`."""

    def __init__(self, flight: BytesInFlight, credential: str) -> None:
        self._flight, self._credential = flight, credential
        self.size = 0

    async def take(self, size: int) -> None:
        """Hold `size` more bytes for the request. Raises HTTPTooManyRequests."""
        if size > 0:
            await self._flight.take(self._credential, size)
            self.size += size

    def give(self, size: int) -> None:
        if size > 0:
            self.size -= size
            self._flight.budget.give(self._credential, size)


async def read_body(request: web.Request, held: HeldBytes, most: int) -> bytearray:
    """Read the body, accounted before it is read: by its length if known, else as it arrives.

    Raises:
        HTTPRequestEntityTooLarge: it has more than `most` bytes.
        HTTPTooManyRequests: it is over what the listener holds.
    """
    length = request.content_length or 0
    if length > most:
        raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=length)
    await held.take(length)
    body, taken = bytearray(), length
    try:
        while chunk := await request.content.readany():
            arrived = len(body) + len(chunk)
            if arrived > most:
                raise web.HTTPRequestEntityTooLarge(max_size=most, actual_size=arrived)
            if arrived > taken:
                await held.take(arrived - taken)
                taken = arrived
            body += chunk
    except BaseException:
        # aiohttp keeps the exception of a broken connection, with this frame, in a cycle: what is
        # counted as returned would stay until the garbage collector comes by.
        body.clear()
        raise
    return body


async def send_whole(request: web.Request, response: web.StreamResponse, held: HeldBytes) -> None:
    """Send a complete response, and return once the client has taken it.

    Raises:
        HTTPTooManyRequests: it is over what the listener holds.
        ConnectionResetError: nobody takes it.
    """
    if isinstance(response, web.Response) and not response.prepared:
        await held.take(_size(response))
        async with taken_in_time(request):
            await response.prepare(request)
            await response.write_eof()


async def send_part(
    request: web.Request, response: web.StreamResponse, data: bytes, held: HeldBytes
) -> None:
    """Send part of a response and return once the client has taken it; raises as `send_whole`."""
    await held.take(len(data))
    async with taken_in_time(request):
        await response.write(data)
    held.give(len(data))


@contextlib.asynccontextmanager
async def taken_in_time(request: web.Request):  # type: ignore[no-untyped-def]
    """Abort the connection of a client that reads nothing of what is sent in the context.

    Its connection is aborted: to close one would wait for what it does not take.
    """
    try:
        async with asyncio.timeout(SEND_SECONDS):
            yield
    except TimeoutError:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client takes nothing") from None


def _size(response: web.Response) -> int:
    body = response.body
    return len(body) if isinstance(body, bytes | bytearray) else 0
