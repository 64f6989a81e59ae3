"""Servers that fetch one version at once over links with a cap, with and without each other.

    python -m benchmarks.peer_pull [--joiners=16] [--megabytes=4] [--link=0.5] [--faults]

Every host has a link of so many MB/s each way, and all bytes between two hosts pass both links. The
trainer serves the version as its file server does; the joiners are the product's pullers and serve
what they have as theirs do; a manager's state machine sends them to each other. All in one process
without TLS: what is measured is who sends what to whom, not how fast a host is. With --faults one
source of the sixteen is killed, slow, lying or cut off while the others fetch from it.
"""

import argparse
import asyncio
import contextlib
import hashlib
import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromServer, FromTrainer, Send, ServerGone
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.messages import FileEntry, Manifest, PieceList
from rlboost_jax.sequences.identities import Version
from rlboost_jax.trust.credentials import Credentials, Endpoint
from rlboost_jax.trust.seal import public_of, sealed
from rlboost_jax.weights import serve
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.peers import swarm
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.held_pieces import HeldPieces
from rlboost_jax.weights.peers.piece_serving import ServedPieces, piece_app
from rlboost_jax.weights.piece_lists import write_list
from rlboost_jax.weights.pull import Puller

MEGABYTE = 1_000_000
CHUNK = 2**12
BURST_SECONDS = 0.5  # that a link makes up for while this process waits for a processor
HERE = "127.0.0.1"
PIECES = 64  # of the version: one of 2 GB in pieces of 32 MB, to scale
SLOW = 0.125  # MB/s: 1 Mbit/s
FAULTS = ("killed", "slow", "lying", "cut off")
STRIKES = 0.3  # of the time that one joiner takes: when something goes wrong
RETRIES = Retries(silence_seconds=5.0)
UNHURRIED = Retries(silence_seconds=600.0)  # where hundreds of connections share a narrow link


class Link:
    """One direction of a host's link."""

    def __init__(self, megabytes_per_second: float) -> None:
        self.rate = megabytes_per_second * MEGABYTE
        self.cut, self.total, self._free_at = False, 0, 0.0

    async def carry(self, size: int) -> None:
        if self.cut:
            await asyncio.Event().wait()
        self.total += size
        if self.rate:
            now = time.monotonic()
            self._free_at = max(now - BURST_SECONDS, self._free_at) + size / self.rate
            await asyncio.sleep(max(0.0, self._free_at - now))


@dataclass
class Host:
    """A host with its link, and what listens there."""

    up: Link
    down: Link
    port: int = 0
    gone: bool = False
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def vanish(self) -> None:
        self.gone = True
        for writer in self.writers:
            writer.transport.abort()


async def way(client: Host, server: Host, stack: contextlib.AsyncExitStack) -> str:
    """HOST:PORT at which one host reaches another, over both links."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if server.gone:
            writer.transport.abort()
            return
        answers, asks = await asyncio.open_connection(HERE, server.port)
        both = {writer, asks}
        server.writers.update(both)
        there = asyncio.create_task(_pump(reader, asks, client.up, server.down))
        back = asyncio.create_task(_pump(answers, writer, server.up, client.down))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # the run has ended
        finally:
            for task in (there, back):
                task.cancel()
            for each in both:
                each.close()
            server.writers.difference_update(both)

    listening = await asyncio.start_server(connected, HERE, 0, limit=CHUNK)
    stack.callback(listening.close)
    return f"{HERE}:{listening.sockets[0].getsockname()[1]}"


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, first: Link, second: Link
) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(CHUNK):
            await first.carry(len(data))
            await second.carry(len(data))
            writer.write(data)
            await writer.drain()


async def listening(app: web.Application, stack: contextlib.AsyncExitStack) -> int:
    """Serve an application; returns the port."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    site = web.TCPSite(runner, HERE, 0)
    await site.start()
    assert site._server is not None
    return int(site._server.sockets[0].getsockname()[1])  # type: ignore[attr-defined]


def version_in(place: Path, num_bytes: int, key: Ed25519PrivateKey) -> tuple[Manifest, PieceList]:
    """A sealed version of random bytes; as a joiner sees it, which does not see its folder."""
    folder = place / "0"
    folder.mkdir()
    files = []
    for number in range(PIECES):
        data = hashlib.shake_256(number.to_bytes(4, "big")).digest(num_bytes // PIECES)
        (folder / str(number)).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        files.append(FileEntry(path=str(number), size=len(data), sha256=digest))
    pieces = PieceList(files=tuple(files), leaves=())
    manifest = write_list(folder, pieces, version=Version(0), params_digest="d")
    return sealed(manifest, key), pieces


class Joiner:
    """A server that fetches the version, and serves what it has."""

    def __init__(self, fleet: "Fleet", number: int, zone: str) -> None:
        self.fleet, self.number, self.name, self.zone = fleet, number, f"j{number}", zone
        self.host, self.key = fleet.new_host(), bytes([number + 1]) * 32
        self.served, self.tell = ServedPieces(), asyncio.Queue[Any]()
        self.held = HeldPieces(lambda *order: self.tell.put_nowait(order))
        self.exchange = PeerExchange(self.held)
        self.seconds, self.lies = 0.0, False
        self._ways: dict[str, str] = {}

    async def open(self, stack: contextlib.AsyncExitStack) -> None:
        app = piece_app(self.key, self.served)
        app.middlewares.append(self._lie)
        self.host.port = await listening(app, stack)
        obeying = asyncio.create_task(self._obey())
        stack.callback(obeying.cancel)
        self._stack = stack
        self.exchange.say = lambda said: self.fleet.hear(self, said)

    async def _obey(self) -> None:
        while True:
            order, blocks = await self.tell.get()
            await self.served.obey(order, {block.number: block for block in blocks})

    @web.middleware
    async def _lie(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not (self.lies and request.path.startswith("/pieces/")):
            response: web.StreamResponse = await handler(request)
            return response
        first, last = map(int, request.path.rpartition("/")[2].split("-"))
        return web.Response(body=bytes((last - first + 1) * self.fleet.piece_bytes))

    def hello(self) -> m.Hello:
        offer = m.PeerOffer(address=f"{self.name}:1", key=self.key, certificate=b"")
        return m.Hello(
            instance=self.name, reserved=False, slots=1, slot_tokens=10**6, price_per_hour=0.0,
            zone=self.zone, host="h", device="cpu", fingerprint="", nonce=self.name, peer=offer,
            fetches_lists=True,
        )  # fmt: skip

    async def told(self, message: m.FetchFrom) -> None:
        """Hear of sources, at the addresses that they have for this host."""
        sources = []
        for source in message.sources:
            other = self.fleet.by_name[source.name]
            if source.name not in self._ways:
                self._ways[source.name] = await way(self.host, other.host, self._stack)
            sources.append(msgspec.structs.replace(source, address=self._ways[source.name]))
        self.exchange.fetch_from(msgspec.structs.replace(message, sources=tuple(sources)))

    async def pull(self, manifest: Manifest, *, with_peers: bool) -> None:
        address = await way(self.host, self.fleet.trainer, self._stack)
        credentials = Credentials(token="", seal=public_of(self.fleet.seal))
        puller = Puller(
            source="http",
            manager=Endpoint(address=address, credentials=credentials),
            weights=address,
            retries=RETRIES if with_peers else UNHURRIED,
            peers=self.exchange if with_peers else None,
        )
        self._stack.callback(self.held.close)
        began = time.monotonic()
        await puller._connections.__aenter__()
        self._stack.push_async_callback(puller._connections.__aexit__)
        await puller.pull(manifest)
        self.seconds = time.monotonic() - began
        self.fleet.hear(self, m.Ready(version=Version(0), params_digest="d"))


class Fleet:
    """A trainer, its manager's state machine, and joiners."""

    def __init__(self, settings: Any, link: float) -> None:
        self._link = link
        self.seal = Ed25519PrivateKey.generate()
        self.trainer = self.new_host()
        self.manager = Manager(settings, time.monotonic())
        self.by_name: dict[str, Joiner] = {}
        self.wasted = self.peer_bytes = self.piece_bytes = 0
        self.faults: list[str] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def new_host(self) -> Host:
        return Host(Link(self._link), Link(self._link))

    def hear(self, joiner: Joiner, message: m.ServerMessage) -> None:
        if joiner.host.gone:
            return
        if isinstance(message, m.SourcesUsed):
            self.wasted += message.wasted_bytes
            self.peer_bytes += sum(outcome.fetched_bytes for outcome in message.outcomes)
            self.faults += [outcome.fault for outcome in message.outcomes if outcome.fault]
        self.act(FromServer(joiner.number + 2, message))

    def act(self, event: Any) -> None:
        for action in self.manager.handle(event, time.monotonic()):
            if isinstance(action, Send) and isinstance(action.message, m.FetchFrom):
                joiner = next(j for j in self.by_name.values() if j.number + 2 == action.stream)
                task = asyncio.create_task(joiner.told(action.message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)


@dataclass(frozen=True)
class Result:
    """
    Attributes:
        seconds: that each joiner took which finished.
        copies: of the version that the trainer sent.
        wasted: bytes that came in vain, of all joiners, in copies of the version.
    """

    seconds: list[float]
    copies: float
    wasted: float
    faults: list[str]


async def measured(
    settings: Any,
    *,
    joiners: int,
    megabytes: float,
    link: float,
    with_peers: bool = True,
    zones: int = 1,
    strike: Callable[["Fleet"], Awaitable[None]] | None = None,
) -> Result:
    """Have all joiners fetch at once; `strike` is awaited beside."""
    with tempfile.TemporaryDirectory() as place:
        async with contextlib.AsyncExitStack() as stack:
            fleet = Fleet(settings, link)
            folder = Path(place) / "trainer"
            folder.mkdir()
            manifest, pieces = version_in(folder, int(megabytes * MEGABYTE), fleet.seal)
            fleet.piece_bytes = pieces.files[0].size
            app = web.Application()
            serve.add_routes(app, serve.ServedVersions([serve.served_version(manifest)]))
            fleet.trainer.port = await listening(app, stack)
            remote = sealed(replace_directory(manifest), fleet.seal)
            fleet.act(FromTrainer(1, m.TrainerHello(run_id="simulated", window=None)))
            for number in range(joiners):
                joiner = Joiner(fleet, number, f"z{number % zones}")
                fleet.by_name[joiner.name] = joiner
                await joiner.open(stack)
                fleet.hear(joiner, joiner.hello())
            fleet.act(FromTrainer(1, m.Publish(manifest=remote)))
            pulls = [
                asyncio.create_task(joiner.pull(remote, with_peers=with_peers))
                for joiner in fleet.by_name.values()
            ]
            striking = asyncio.create_task(strike(fleet)) if strike else None
            await asyncio.gather(
                *(
                    pull
                    for pull, joiner in zip(pulls, fleet.by_name.values(), strict=True)
                    if striking is None or joiner.number
                )
            )
            if striking is not None:
                await striking
                pulls[0].cancel()
                await asyncio.gather(pulls[0], return_exceptions=True)
            size = manifest.piece_bytes
            sound = [j for j in fleet.by_name.values() if striking is None or j.number]
            for joiner in sound if with_peers else ():
                _check(joiner, pieces)
            return Result(
                [joiner.seconds for joiner in sound],
                fleet.trainer.up.total / size,
                fleet.wasted / size,
                fleet.faults,
            )


def replace_directory(manifest: Manifest) -> Manifest:
    return msgspec.structs.replace(manifest, directory="/nowhere")


def _check(joiner: Joiner, pieces: PieceList) -> None:
    """Everything that it has is what the list says."""
    version = joiner.held._whole
    assert version is not None and len(version.held) == len(pieces.files)
    for entry in pieces.files:
        data = version.chunks[entry.path].tobytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256


def striking(fault: str, after: float) -> Callable[[Fleet], Awaitable[None]]:
    """Something goes wrong with the first joiner."""

    async def strike(fleet: Fleet) -> None:
        await asyncio.sleep(after)
        first = fleet.by_name["j0"]
        match fault:
            case "killed":
                first.host.vanish()
                fleet.act(ServerGone(first.number + 2, "killed"))
            case "slow":
                first.host.up.rate = SLOW * MEGABYTE
            case "lying":
                first.lies = True
            case "cut off":
                first.host.up.cut = first.host.down.cut = True

    return strike


def planning() -> Any:
    """Settings of a manager that sends servers to each other and loses none for silence."""
    from configs.sim import base
    from rlboost_jax.simulator.sim_config_loading import sim_config
    from rlboost_jax.simulator.world import settings

    made = settings(sim_config(base.get_config("14b")))
    manager = replace(made.manager, lease_seconds=1e6, longest_lease_seconds=1e6)
    return replace(made, peers=True, manager=manager, slot_tokens=1)


def line(name: str, result: Result, alone: float) -> str:
    worst = max(result.seconds)
    return (
        f"{name:22} {worst:7.1f} s {worst / alone:6.2f}x one joiner's, {result.copies:5.2f} copies "
        f"from the trainer, {result.wasted:5.2f} in vain  {dict(Counter(result.faults)) or ''}"
    )


async def table(options: argparse.Namespace) -> None:
    size = dict(megabytes=options.megabytes, link=options.link)
    settings = planning()
    one = await measured(settings, joiners=1, **size)
    alone = one.seconds[0]
    print(line("1 joiner", one, alone), flush=True)
    count = options.joiners
    swarm.GROUP_BYTES = int(options.megabytes * MEGABYTE) // PIECES  # no piece is a small one
    together = await measured(settings, joiners=count, **size)
    print(line(f"{count} joiners", together, alone), flush=True)
    zones = await measured(settings, joiners=count, zones=3, **size)
    print(line(f"{count} in 3 zones", zones, alone), flush=True)
    for fault in FAULTS if options.faults else ():
        strike = striking(fault, STRIKES * alone)
        result = await measured(settings, joiners=count, strike=strike, **size)
        print(line(f"{count}, one {fault}", result, alone), flush=True)
    if options.without:
        result = await measured(settings, joiners=count, with_peers=False, **size)
        print(line(f"{count} without peers", result, alone), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--joiners", type=int, default=16)
    parser.add_argument("--megabytes", type=float, default=4.0)
    parser.add_argument("--link", type=float, default=0.5, help="MB/s")
    parser.add_argument("--faults", action="store_true")
    parser.add_argument("--without", action="store_true")
    logging.getLogger("aiohttp.server").disabled = True
    asyncio.run(table(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
