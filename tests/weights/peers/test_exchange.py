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
from rlboost_jax.messages import FileEntry, PieceList
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
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.endpoints import SEAL, endpoint
from tests.patience import PATIENCE_SECONDS

ROOT = "a" * 64
SIZES = [300_000, 0, 5, 700_000, 64, 1_200_000, 1, 2_000_000, 90_000]
CONTENT = [hashlib.shake_256(bytes([n])).digest(size) for n, size in enumerate(SIZES)]
FILES = [
    FileEntry(path=f"leaf{n % 2}/{n}", size=len(c), sha256=hashlib.sha256(c).hexdigest())
    for n, c in enumerate(CONTENT)
]
PIECES = PieceList(files=tuple(FILES), leaves=())
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
        version = await self.held.arrive(ROOT, PIECES, PIECES)
        retries = Retries(first_backoff_seconds=0.0, silence_seconds=PATIENCE_SECONDS)
        await self.exchange.bring(version, ByteCounter(), outside, retries)
        return version

    def faults(self) -> dict[str, str]:
        outcomes = [outcome for said in self.said for outcome in said.outcomes]
        return {outcome.source: outcome.fault for outcome in outcomes if outcome.fault}


class Nodes:
    """Makes them, and sends them to each other as a manager would."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack

    async def __call__(self, *middlewares: Any, pace: UploadPace | None = None) -> Node:
        served, orders = ServedPieces(), asyncio.Queue[Any]()
        held, key = HeldPieces(lambda *order: orders.put_nowait(order)), bytes(32)
        app = piece_app(key, served, pace=pace, watch_seconds=0.05)
        app.middlewares.extend(middlewares)
        server = await self._stack.enter_async_context(TestServer(app))

        async def obey() -> None:
            while True:
                order, blocks = await orders.get()
                await served.obey(order, {block.number: block for block in blocks})

        obeying = asyncio.create_task(obey())
        self._stack.callback(obeying.cancel)
        node = Node(PeerExchange(held, sources_seconds=0.0), held, key, server)
        self._stack.callback(held.close)
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


def scenario(what: Callable[[Nodes], Any]) -> None:
    async def run() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), AsyncExitStack() as stack:
            await what(Nodes(stack))

    asyncio.run(run())


def assert_whole(version: HeldVersion) -> None:
    assert version.held == ALL
    for entry, content in zip(FILES, CONTENT, strict=True):
        assert version.chunks[entry.path].tobytes() == content


def test_servers_that_fetch_at_once_have_it_from_each_other() -> None:
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

    scenario(what)


def test_without_the_managers_word_everything_comes_from_the_trainer() -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            node = await nodes()
            assert_whole(await node.bring(outside))
            assert sum(asked) == sum(SIZES)
            assert sum(said.outside_bytes for said in node.said) == sum(SIZES)
            assert not sum(said.wasted_bytes for said in node.said)

    scenario(what)


def test_a_server_with_all_of_it_gives_all() -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            first, second = await nodes(), await nodes()
            first.held.complete(await first.bring(outside))
            asked.clear()
            send(second, PARTS, {"first": first})
            assert_whole(await second.bring(outside))
            (outcome,) = second.said[-1].outcomes
            assert outcome.fetched_bytes + sum(asked) >= sum(SIZES)
            assert outcome.fetched_bytes and not outcome.fault

    scenario(what)


def test_a_lying_source_costs_its_pieces_and_is_named() -> None:
    @web.middleware
    async def lie(request: web.Request, handler: Any) -> web.StreamResponse:
        if not request.path.startswith("/pieces/"):
            return await handler(request)  # type: ignore[no-any-return]
        first, last = map(int, request.path.rpartition("/")[2].split("-"))
        return web.Response(body=bytes(sum(SIZES[first : last + 1])))

    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _):
            liar, honest = await nodes(lie), await nodes()
            liar.held.complete(await liar.bring(outside))
            send(honest, 0, {"liar": liar})
            assert_whole(await honest.bring(outside))
            assert honest.faults() == {"liar": "wrong"}
            assert sum(said.wasted_bytes for said in honest.said) > 0

    scenario(what)


def test_a_source_that_is_not_there_is_named_and_the_trainer_asked() -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            dead, node = await nodes(), await nodes()
            send(node, 0, {"dead": dead})
            await dead.server.close()
            assert_whole(await node.bring(outside))
            assert node.faults() == {"dead": "unreachable"}
            assert sum(asked) == sum(SIZES)

    scenario(what)


def test_a_source_that_falls_silent_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(swarm, "SILENT_SECONDS", 0.1)

    @web.middleware
    async def hang(request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path.startswith("/pieces/"):
            await asyncio.Event().wait()
        return await handler(request)  # type: ignore[no-any-return]

    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _):
            silent, node = await nodes(hang), await nodes()
            silent.held.complete(await silent.bring(outside))
            send(node, 0, {"silent": silent})
            assert_whole(await node.bring(outside))
            assert node.faults() == {"silent": "slow"}

    scenario(what)


def test_a_trainer_with_other_bytes_is_an_error() -> None:
    async def what(nodes: Nodes) -> None:
        other = [bytes(len(content)) for content in CONTENT]
        async with trainer(other) as (outside, _):
            with pytest.raises(WeightsError, match="SHA-256"):
                await (await nodes()).bring(outside)

    scenario(what)


def test_a_token_of_another_version_or_server_opens_nothing() -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, _), aiohttp.ClientSession() as http:
            node = await nodes()
            node.held.complete(await node.bring(outside))
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

    scenario(what)


def test_what_did_not_change_is_not_fetched_again() -> None:
    async def what(nodes: Nodes) -> None:
        async with trainer() as (outside, asked):
            node = await nodes()
            node.held.complete(await node.bring(outside))
            asked.clear()
            later = await node.held.arrive("c" * 64, PIECES, PIECES)
            assert_whole(later)

    scenario(what)


def test_uploads_keep_to_a_rate() -> None:
    now = [0.0]
    pace = UploadPace(100.0, clock=lambda: now[0])
    assert [pace.wait(50), pace.wait(50), pace.wait(100)] == [0.5, 1.0, 2.0]
    now[0] = 10.0
    assert pace.wait(50) == 0.5
    assert UploadPace(0.0).wait(10**9) == 0.0


@pytest.mark.parametrize("source", ["http", "auto"])
def test_parameters_pulled_with_peers_are_the_same(
    manifest: m.Manifest, params: Any, source: str
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

    scenario(what)


def test_leaves_made_from_differences_are_served_like_all_others(tmp_path: Path) -> None:
    """The second server has no version before, and fetches whole what the first one has made."""
    table = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
    store = SnapshotStore(tmp_path, dtype="bfloat16", keep=4, deltas=(1,))
    manifests = []
    for version in range(2):
        tree = {"table": table + version * np.eye(64, 256, dtype=np.float32), "same": table[:3]}
        manifest = store.write(version, tree, "d")
        store.make_packs(manifest)
        manifests.append(sealed(msgspec.structs.replace(manifest, directory="/nowhere"), SEAL))
    asked: list[str] = []

    @web.middleware
    async def note(request: web.Request, handler: Any) -> web.StreamResponse:
        asked.append(request.path)
        response: web.StreamResponse = await handler(request)
        return response

    async def what(nodes: Nodes) -> None:
        app = web.Application(middlewares=[note])
        here = [
            msgspec.structs.replace(m, directory=str(tmp_path / f"{m.version}")) for m in manifests
        ]
        versions = serve.ServedVersions([serve.served_version(manifest) for manifest in here])
        serve.add_routes(app, versions)
        async with TestServer(app) as server:
            first, second = await nodes(), await nodes()
            pulled = []
            for node, wanted in ((first, manifests), (second, manifests[1:])):
                puller = Puller(
                    source="http",
                    manager=endpoint(f"127.0.0.1:{server.port}"),
                    peers=node.exchange,
                    deltas=True,
                )
                for manifest in wanted:
                    root = root_of(manifest)
                    if node is second:
                        token = transfer_token(first.key, "me", root)
                        send(node, 0, {"first": first}, token=token, root=root)
                    pulled.append(await puller.pull(manifest))
                if node is first:
                    assert asked.count("/weights/0") and not asked.count("/weights/1")
                    version = node.held._whole
                    assert version is not None and len(version.held) == len(version.files)
            by_deltas, from_peer = pulled[1:]
            for name, leaf in by_deltas.params.items():
                assert leaf.tobytes() == from_peer.params[name].tobytes()
                assert leaf.tobytes() == tree[name].astype(leaf.dtype).tobytes()
            assert sum(o.fetched_bytes for said in second.said for o in said.outcomes) > 0
            assert not second.faults()

    scenario(what)
