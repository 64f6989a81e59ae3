"""Servers that fetch a version from each other: what they have is right, whatever sources do."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlboost_jax import messages as m
from rlboost_jax.messages import FileEntry
from rlboost_jax.trust.seal import root_of, sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.trust.transfers import transfer_token
from rlboost_jax.weights import serve
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.peers import swarm
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.held_pieces import HeldPieces, HeldVersion
from rlboost_jax.weights.peers.outside_pieces import TrainerPieces
from rlboost_jax.weights.peers.piece_serving import ServedPieces, UploadPace, piece_app
from rlboost_jax.weights.pull import Puller
from tests.endpoints import SEAL, endpoint
from tests.patience import PATIENCE_SECONDS

ROOT = "a" * 64
SIZES = [300_000, 0, 5, 700_000, 64, 1_200_000, 1, 2_000_000, 90_000]
CONTENT = [hashlib.shake_256(bytes([n])).digest(size) for n, size in enumerate(SIZES)]
FILES = [
    FileEntry(path=f"leaf{n % 2}/{n}", size=len(c), sha256=hashlib.sha256(c).hexdigest())
    for n, c in enumerate(CONTENT)
]
ALL = set(range(len(FILES)))
PARTS = 2**64 - 1


@asynccontextmanager
async def trainer(content: list[bytes] = CONTENT) -> AsyncIterator[tuple[TrainerPieces, list[int]]]:
    """The trainer's file server, and the bytes that it was asked for."""
    whole, asked = b"".join(content), []

    async def serve(request: web.Request) -> web.Response:
        begin, end, _ = request.http_range.indices(len(whole))
        asked.append(end - begin)
        return web.Response(status=206, body=whole[begin:end])

    app = web.Application()
    app.router.add_get("/weights/0", serve)
    async with TestServer(app) as server, aiohttp.ClientSession(str(server.make_url("/"))) as http:
        yield TrainerPieces("/weights/0", FILES, http), asked


@dataclass
class Node:
    """A server of the exchange."""

    exchange: PeerExchange
    held: HeldPieces
    key: bytes
    server: TestServer
    said: list[m.SourcesUsed] = field(default_factory=list)

    async def bring(self, outside: TrainerPieces) -> HeldVersion:
        version = await self.held.arrive(ROOT, FILES)
        retries = Retries(first_backoff_seconds=0.0, silence_seconds=PATIENCE_SECONDS)
        await self.exchange.bring(version, ALL, ByteCounter(), outside, retries)
        return version

    def faults(self) -> dict[str, str]:
        outcomes = [outcome for said in self.said for outcome in said.outcomes]
        return {outcome.source: outcome.fault for outcome in outcomes if outcome.fault}


class Nodes:
    """Makes them, and sends them to each other as a manager would."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self._stack, self._folder = stack, folder

    async def __call__(self, *middlewares: Any, pace: UploadPace | None = None) -> Node:
        served, orders = ServedPieces(), asyncio.Queue[Any]()
        held, key = HeldPieces(self._folder, tell=orders.put_nowait), bytes(32)
        app = piece_app(key, served, pace=pace, watch_seconds=0.05)
        app.middlewares.extend(middlewares)
        server = await self._stack.enter_async_context(TestServer(app))

        async def obey() -> None:
            while True:
                await served.obey(await orders.get())

        obeying = asyncio.create_task(obey())
        self._stack.callback(obeying.cancel)
        node = Node(PeerExchange(held, sources_seconds=0.0), held, key, server)
        self._stack.push_async_callback(held.close)
        node.exchange.say = node.said.append
        return node


def send(
    node: Node, parts: int, sources: dict[str, Node], *, token: str = "", root: str = ROOT
) -> None:
    named = tuple(
        m.PieceSource(
            name=name,
            address=f"127.0.0.1:{source.server.port}",
            certificate=b"",
            token=token or transfer_token(source.key, "me", ROOT),
            near=True,
        )
        for name, source in sources.items()
    )
    node.exchange.fetch_from(m.FetchFrom(root=root, sources=named, parts=parts))


def scenario(tmp_path: Path, what: Callable[[Nodes], Any]) -> None:
    tmp_path.mkdir(exist_ok=True)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            await what(Nodes(stack, tmp_path))

    asyncio.run(run())


def assert_whole(version: HeldVersion) -> None:
    assert version.held == ALL
    for entry, content in zip(FILES, CONTENT, strict=True):
        assert (version.folder / entry.path).read_bytes() == content


def test_servers_that_fetch_at_once_have_it_from_each_other(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            made = [await nodes() for _ in range(3)]
            for number, node in enumerate(made):
                others = {str(n): other for n, other in enumerate(made) if other is not node}
                parts = sum(1 << part for part in range(64) if part % 3 == number)
                send(node, parts, others)
            for version in await asyncio.gather(*(node.bring(outside) for node in made)):
                assert_whole(version)
            assert sum(asked) <= 2 * sum(SIZES)  # 3 alone; a busy host may wait in vain
            assert not any(node.faults() for node in made)

    scenario(tmp_path, what)


def test_without_the_managers_word_everything_comes_from_the_trainer(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            node = await nodes()
            assert_whole(await node.bring(outside))
            assert sum(asked) == sum(SIZES)
            assert sum(said.outside_bytes for said in node.said) == sum(SIZES)
            assert not sum(said.wasted_bytes for said in node.said)

    scenario(tmp_path, what)


def test_a_server_with_all_of_it_gives_all(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            first, second = await nodes(), await nodes()
            await first.held.complete(await first.bring(outside))
            asked.clear()
            send(second, PARTS, {"first": first})
            assert_whole(await second.bring(outside))
            (outcome,) = second.said[-1].outcomes
            assert outcome.fetched_bytes + sum(asked) >= sum(SIZES)
            assert outcome.fetched_bytes and not outcome.fault

    scenario(tmp_path, what)


def test_a_lying_source_costs_its_pieces_and_is_named(tmp_path: Path) -> None:
    @web.middleware
    async def lie(request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/pieces/"):
            return await handler(request)  # type: ignore[no-any-return]
        first, last = map(int, request.path.rpartition("/")[2].split("-"))
        return web.Response(body=bytes(sum(SIZES[first : last + 1])))

    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _):
            liar, honest = await nodes(lie), await nodes()
            await liar.held.complete(await liar.bring(outside))
            send(honest, 0, {"liar": liar})
            assert_whole(await honest.bring(outside))
            assert honest.faults() == {"liar": "wrong"}
            assert sum(said.wasted_bytes for said in honest.said) > 0

    scenario(tmp_path, what)


def test_a_source_that_is_not_there_is_named_and_the_trainer_asked(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            dead, node = await nodes(), await nodes()
            send(node, 0, {"dead": dead})
            await dead.server.close()
            assert_whole(await node.bring(outside))
            assert node.faults() == {"dead": "unreachable"}
            assert sum(asked) == sum(SIZES)

    scenario(tmp_path, what)


def test_a_source_that_falls_silent_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swarm, "SILENT_SECONDS", 0.1)

    @web.middleware
    async def hang(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/pieces/"):
            await asyncio.Event().wait()
        return await handler(request)  # type: ignore[no-any-return]

    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _):
            silent, node = await nodes(hang), await nodes()
            await silent.held.complete(await silent.bring(outside))
            send(node, 0, {"silent": silent})
            assert_whole(await node.bring(outside))
            assert node.faults() == {"silent": "slow"}

    scenario(tmp_path, what)


def test_a_trainer_with_other_bytes_is_an_error(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        other = [bytes(len(content)) for content in CONTENT]
        async with trainer(other) as (outside, _):
            with pytest.raises(WeightsError, match="SHA-256"):
                await (await nodes()).bring(outside)

    scenario(tmp_path, what)


def test_a_token_of_another_version_or_server_opens_nothing(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _), aiohttp.ClientSession() as http:
            node = await nodes()
            await node.held.complete(await node.bring(outside))
            good = transfer_token(node.key, "me", ROOT)
            for token, status in (
                (good, 200),
                ("", 401),
                (transfer_token(node.key, "me", "b" * 64), 401),
                (transfer_token(b"k" * 32, "me", ROOT), 401),
                (good.replace("me:", "you:"), 401),
                ("\u00fc:" + good[3:], 401),
            ):
                url = node.server.make_url(f"/pieces/{ROOT}/0-0")
                headers = {"Authorization": f"Bearer {token}"}
                async with http.get(url, headers=headers) as answer:
                    assert answer.status == status, token
            for path in (f"/pieces/{ROOT}/0-9", f"/pieces/{ROOT}/3-2", f"/pieces/{ROOT}/999-999"):
                headers = {"Authorization": f"Bearer {good}"}
                async with http.get(node.server.make_url(path), headers=headers) as answer:
                    assert answer.status == 404

    scenario(tmp_path, what)


def test_what_did_not_change_is_not_fetched_again(tmp_path: Path) -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            node = await nodes()
            await node.held.complete(await node.bring(outside))
            asked.clear()
            before = node.held._whole
            assert before is not None
            later = await node.held.arrive("c" * 64, FILES)
            assert later.held == ALL and later.folder != before.folder
            await node.held.complete(later)
            assert not before.folder.exists()
            assert (later.folder / FILES[0].path).read_bytes() == CONTENT[0]

    scenario(tmp_path, what)


def test_uploads_keep_to_a_rate() -> None:
    now = [0.0]
    pace = UploadPace(100.0, clock=lambda: now[0])
    assert [pace.wait(50), pace.wait(50), pace.wait(100)] == [0.5, 1.0, 2.0]
    now[0] = 10.0
    assert pace.wait(50) == 0.5
    assert UploadPace(0.0).wait(10**9) == 0.0


@pytest.mark.parametrize("source", ["http", "auto"])
def test_parameters_pulled_with_peers_are_the_same(
    tmp_path: Path, manifest: m.Manifest, params: Any, source: str
) -> None:
    """Pulled twice: from the trainer, and by another server from the first one."""
    sealed_one = sealed(manifest, SEAL)
    far = msgspec.structs.replace(sealed_one, directory="/nowhere") if source == "http" else None
    seen = sealed(far, SEAL) if far else sealed_one

    async def what(nodes: Nodes) -> None:
        app = web.Application()
        serve.add_routes(app, serve.ServedVersions([serve.served_version(manifest)]))
        async with TestServer(app) as server:
            first, second = await nodes(), await nodes()
            for node in (first, second):
                puller = Puller(
                    source=source,
                    manager=endpoint(f"127.0.0.1:{server.port}"),
                    peers=node.exchange,
                )
                if node is second:
                    token = transfer_token(first.key, "me", root_of(seen))
                    send(node, 0, {"first": first}, token=token, root=root_of(seen))
                pulled = await puller.pull(seen)
                np.testing.assert_array_equal(
                    pulled.params["embed"]["table"], params["embed"]["table"]
                )
                np.testing.assert_array_equal(
                    pulled.params["layers"]["attention"]["query"]["kernel"],
                    params["layers"]["attention"]["query"]["kernel"],
                )
                version = node.held._whole
                assert version is not None and len(version.held) == len(version.files)
            if source == "http":
                (outcome,) = second.said[-1].outcomes
                assert outcome.fetched_bytes > 0.9 * manifest.piece_bytes

    scenario(tmp_path / "held", what)
