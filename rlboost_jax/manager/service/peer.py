"""The sending side of one stream: a bounded queue and the task that empties it."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from aiohttp import web

SERVER_QUEUES_BYTES = 256 * 2**20  # unsent frames of all servers
CLOSE_SECONDS = 1.0  # for the last frames to leave and the other side to hang up
CLOSE_REASON_BYTES = 120  # a close frame carries at most 123


class PeerQueue(Protocol):
    """Unsent messages of one peer."""

    @property
    def queued(self) -> int:
        """Bytes in the queue."""

    def drop(self, reason: str) -> None:
        """Give up on the peer: it counts as lost."""


class Unsent:
    """Total of unsent bytes of all peers of one kind.

    If they exceed `most`, the peer with the longest queue is dropped.

    Args:
        most: bytes.
    """

    def __init__(self, most: int) -> None:
        self._most, self.size = most, 0
        self._queues: dict[PeerQueue, None] = {}  # that are not empty

    def add(self, queue: PeerQueue, size: int) -> None:
        """Record that `queue` has grown by `size` bytes."""
        self._queues[queue] = None
        self.size += size
        while self.size > self._most:
            longest = max(self._queues, key=lambda each: each.queued)
            longest.drop(f"reads too slowly: over {self._most} bytes wait for all like it")

    def remove(self, queue: PeerQueue, size: int) -> None:
        """Record that `queue` has shrunk by `size` bytes."""
        self.size -= size
        if not queue.queued:
            self._queues.pop(queue, None)


class Peer:
    """Sender for one peer: messages leave in order, and no caller waits for them.

    Args:
        bound: bytes that may be queued. A peer that reads more slowly than that is lost:
            `overflow` is called once, with the reason.
        unsent: of all like it.
    """

    def __init__(
        self,
        socket: web.WebSocketResponse,
        transport: asyncio.Transport | None,
        *,
        bound: int,
        unsent: Unsent,
        overflow: Callable[[str], object],
    ) -> None:
        self._socket = socket
        self._transport = transport
        self._bound = bound
        self._overflow = overflow
        self._queue: deque[bytes] = deque()
        self._queued, self._unsent = 0, unsent
        self._awake = asyncio.Event()
        self._closing: str | None = None
        self._dead = False
        self._task = asyncio.create_task(self._run())

    def send(self, data: bytes) -> None:
        if self._dead or self._closing is not None:
            return
        if self._queued + len(data) > self._bound:
            self.drop(f"reads too slowly: over {self._bound} bytes are waiting for it")
            return
        self._queue.append(data)
        self._queued += len(data)
        self._awake.set()
        self._unsent.add(self, len(data))

    @property
    def queued(self) -> int:
        return self._queued

    def drop(self, reason: str) -> None:
        """See `PeerQueue`."""
        self._dead = True
        self._clear()
        self._overflow(reason)

    def close(self, reason: str) -> None:
        """End the stream after what is queued; at the latest in `CLOSE_SECONDS`."""
        if self._closing is None:
            self._closing = reason
            self._awake.set()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self._task.cancel)

    async def ended(self) -> None:
        """Wait until nothing more will be sent; never raises."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while True:
                await self._awake.wait()
                self._awake.clear()
                while self._queue:
                    data = self._queue.popleft()
                    await self._socket.send_bytes(data)
                    self._shrink(min(self._queued, len(data)))  # nothing where it was dropped
                if self._closing is not None:
                    await self._socket.close(message=_cut(self._closing))
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass  # the reading side hears of a broken connection; a cancelled one is ours
        finally:
            self._dead = True
            self._clear()
            if not self._socket.closed and self._transport is not None:
                self._transport.abort()  # a frozen peer would never confirm the close

    def _clear(self) -> None:
        self._queue.clear()
        self._shrink(self._queued)

    def _shrink(self, size: int) -> None:
        self._queued -= size
        self._unsent.remove(self, size)


def _cut(reason: str) -> bytes:
    """Cut a reason to what a close frame can carry, in whole characters."""
    return reason.encode()[:CLOSE_REASON_BYTES].decode(errors="ignore").encode()
