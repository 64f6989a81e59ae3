"""Real processes on either side of a line that is not there.

A relay listens on a port of this host. What comes in there goes on to its target as late as the
line would have it (`benchmarks/lines/tcp.py`); a new connection first takes the round trip of its
handshake, or more where that is lost (RFC 6298, 2.1: 1 s, 2 s, 4 s, …). All relays of one line
share its two directions: they are to a server what its one way to the manager's host is.
"""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from benchmarks.lines.tcp import FIRST_TIMEOUT, HEADER_BYTES, Flow, Pipe, Way

LOCAL = "127.0.0.1"
READ_BYTES = 2**16
FLIGHT_BYTES = 2**16  # that wait in a relay for the line, and as many in the kernel before it
LOOK_SECONDS = 0.02


class Line:
    """What lies between one server and the manager.

    Args:
        up, down: towards the manager and back.
    """

    def __init__(self, up: Way, down: Way, *, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.up, self.down = Pipe(up, chance), Pipe(down, chance)

    def cut(self) -> None:
        """Nothing passes any more, and no end is notified."""
        self.up.cut = self.down.cut = True

    async def handshake(self) -> None:
        """The time that a connection takes to come about."""
        loop = asyncio.get_running_loop()
        patience = FIRST_TIMEOUT
        while True:
            there = self.up.arrival(HEADER_BYTES, loop.time())
            if there is not None:
                await asyncio.sleep(max(0.0, there - loop.time()))
                back = self.down.arrival(HEADER_BYTES, loop.time())
                if back is not None:
                    await asyncio.sleep(max(0.0, back - loop.time()))
                    return
            await asyncio.sleep(patience)
            patience *= 2


@asynccontextmanager
async def relay(line: Line, target: str) -> AsyncIterator[str]:
    """Yields the HOST:PORT that leads over the line to `target`, a HOST:PORT of this host."""
    host, _, port = target.rpartition(":")
    connections: set[asyncio.Task[None]] = set()

    async def serve(near: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            await line.handshake()
            far, far_writer = await asyncio.open_connection(host, int(port), limit=READ_BYTES)
            await _carry(line, (near, writer), (far, far_writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            connections.discard(task)

    listener = socket.create_server((LOCAL, 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, FLIGHT_BYTES)
    server = await asyncio.start_server(serve, sock=listener, limit=READ_BYTES)
    try:
        yield f"{LOCAL}:{listener.getsockname()[1]}"
    finally:
        server.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _carry(line: Line, near: Ends, far: Ends) -> None:
    """Until one side has hung up and what it had sent is there."""
    ways = [
        asyncio.ensure_future(_one_way(line.up, line.down, near[0], far[1])),
        asyncio.ensure_future(_one_way(line.down, line.up, far[0], near[1])),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
        far[1].transport.abort()


async def _one_way(
    there: Pipe, back: Pipe, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    room = asyncio.Event()

    def deliver(data: bytes) -> None:
        if not writer.transport.is_closing():
            writer.write(data)

    flow = Flow(
        asyncio.get_running_loop(), there, back, deliver,
        buffer_bytes=FLIGHT_BYTES, room=room.set,
    )  # fmt: skip
    try:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(READ_BYTES):
                room.clear()
                if not flow.offer(data):
                    await room.wait()
        while not flow.idle:
            await asyncio.sleep(LOOK_SECONDS)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    finally:
        flow.stop()
