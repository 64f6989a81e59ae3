"""Rollout servers without an engine, in any number, and a wire between them and a real manager.

    python -m benchmarks.streams --manager=HOST:PORT --join=FOLDER --count=25 --prefix=a

serves so many streams in a process of its own: something to kill, to stop, to pull out.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from rlboost_jax import messages as m
from rlboost_jax.rollout.renewal_timing import RenewalTiming
from rlboost_jax.trust.credentials import Endpoint, read_credentials

JOIN_SECONDS = 30.0
SLOTS, SLOT_TOKENS = 4, 2**17
Stream = aiohttp.ClientWebSocketResponse


@asynccontextmanager
async def joined(manager: Endpoint, name: str) -> AsyncIterator[tuple[Stream, m.Welcome]]:
    """Join a manager as a server; yields the stream, and how the manager welcomes it."""
    async with (
        aiohttp.ClientSession(headers=manager.headers) as session,
        session.ws_connect(
            manager.url("/instance"), ssl=manager.tls, max_msg_size=m.MAX_FRAME_BYTES
        ) as stream,
    ):
        hello = m.Hello(
            instance=name, reserved=False, slots=SLOTS, slot_tokens=SLOT_TOKENS,
            price_per_hour=0.0, zone="", host="", device="none", fingerprint="none",
            fetches_lists=True,
        )  # fmt: skip
        await stream.send_bytes(m.encode(hello))
        welcome = m.decode_to_server(await stream.receive_bytes(timeout=JOIN_SECONDS))
        assert isinstance(welcome, m.Welcome), welcome
        yield stream, welcome


async def serve(manager: Endpoint, name: str, there: asyncio.Event) -> None:
    """One server that renews its lease, takes weights and work, and gives no token ever.

    Returns when its manager hangs up or sends it home.

    Args:
        there: set once it has joined.
    """
    async with joined(manager, name) as (stream, welcome):
        loop, renewals = asyncio.get_running_loop(), RenewalTiming()
        there.set()
        stamp = welcome.stamp

        async def renew() -> None:
            while True:
                await renewals.next_one(welcome.renew_seconds)
                renewal = m.Renew(echo=stamp, round_trip=renewals.take_longest())
                renewals.asked(loop.time())
                await stream.send_bytes(m.encode(renewal))

        renewing = asyncio.create_task(renew())
        try:
            async for frame in stream:
                match m.decode_to_server(frame.data):
                    case m.Renewed(stamp=newest, busy=busy):
                        stamp = newest
                        renewals.answered(loop.time(), busy)
                    case m.Announce(manifest=chosen):
                        version, digest = chosen.version, chosen.params_digest
                        ready = m.Ready(version=version, params_digest=digest)
                        await stream.send_bytes(m.encode(ready))
                    case m.Leave():
                        return
        finally:
            renewing.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await renewing


@asynccontextmanager
async def serving(manager: Endpoint, names: list[str]) -> AsyncIterator[None]:
    """Servers of these names, joined; gone afterwards."""
    events = [asyncio.Event() for _ in names]
    tasks = [
        asyncio.create_task(serve(manager, name, event))
        for name, event in zip(names, events, strict=True)
    ]
    try:
        async with asyncio.timeout(JOIN_SECONDS):
            await asyncio.gather(*(event.wait() for event in events))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)  # hung up on, as was to be


class Connection:
    """Two sockets and what is passed between them; cut off, it is read and thrown away."""

    def __init__(self) -> None:
        self.up = self.down = True  # towards the manager, from it
        self.writers: list[asyncio.StreamWriter] = []

    async def pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, up: bool
    ) -> None:
        while data := await reader.read(65_536):
            if self.up if up else self.down:
                writer.write(data)
                await writer.drain()
        if self.up if up else self.down:  # else no end is notified
            writer.close()


class Wire:
    """A proxy of our own before a manager. Connections are listed in the order of their dials."""

    def __init__(self, host: str, port: int) -> None:
        self._manager = host, port
        self.connections: list[Connection] = []
        self.address = ""

    async def __aenter__(self) -> "Wire":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for connection in self.connections:
            for writer in connection.writers:
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = Connection()
        self.connections.append(connection)
        their_reader, their_writer = await asyncio.open_connection(*self._manager)
        connection.writers = [writer, their_writer]
        with contextlib.suppress(ConnectionError):
            await asyncio.gather(
                connection.pass_on(reader, their_writer, up=True),
                connection.pass_on(their_reader, writer, up=False),
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--manager", required=True, metavar="HOST:PORT")
    parser.add_argument("--join", required=True, type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--prefix", default="stream")
    args = parser.parse_args()
    names = [f"{args.prefix}-{i}" for i in range(args.count)]

    async def run() -> None:
        credentials = read_credentials(args.join, environment={})
        async with serving(Endpoint(address=args.manager, credentials=credentials), names):
            print("joined", flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()
