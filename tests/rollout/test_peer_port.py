"""A server's port for others that fetch weights: its process, TLS and transfer tokens."""

import asyncio
import contextlib
import hashlib
import os
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest

from rlboost_jax import messages as m
from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.restarts import Restarts
from rlboost_jax.rollout.peer_port import PeerPort, peer_port
from rlboost_jax.settings.weights_config import WeightsConfig
from rlboost_jax.trust.credentials import Credentials, Endpoint, read_credentials
from rlboost_jax.trust.transfers import fetching_tls, transfer_token
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import RETRIES
from rlboost_jax.weights.file_server.file_server_process import FileServer
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS

ROOT = "a" * 64
AT_ONCE = Restarts(most_starts=None, first_pause_seconds=0.0)
CONTENT = [hashlib.shake_256(bytes([n])).digest(400_000) for n in range(6)]
FILES = [
    FileEntry(path=str(n), size=len(c), sha256=hashlib.sha256(c).hexdigest())
    for n, c in enumerate(CONTENT)
]
PIECES = PieceList(files=tuple(FILES), leaves=())


class Nowhere:
    """A trainer that cannot be reached."""

    async def chunks(self, pieces: range):  # type: ignore[no-untyped-def]
        raise aiohttp.ClientConnectionError("nothing comes from here")
        yield b""


@asynccontextmanager
async def port(join: Path, address: str = "127.0.0.1") -> AsyncIterator[PeerPort]:
    manager = Endpoint(address="127.0.0.1:1", credentials=read_credentials(join))
    async with peer_port(WeightsConfig(peers=True), manager, address, print) as made:
        yield made


async def holding(made: PeerPort) -> None:
    """Give it a whole version."""
    assert made.exchange is not None
    held = made.exchange.held
    version = await held.arrive(ROOT, PIECES, PIECES)
    for entry, content in zip(FILES, CONTENT, strict=True):
        version.leaves.put(entry, memoryview(content))
        held.add(version, [entry])
    held.complete(version)


def source(offer: m.PeerOffer, token: str) -> m.FetchFrom:
    one = m.PieceSource(
        name="one", address=offer.address, certificate=offer.certificate, token=token, near=True
    )
    return m.FetchFrom(root=ROOT, sources=(one,), parts=0)


def test_a_server_fetches_from_another_ones_process(tmp_path: Path) -> None:
    run = make_run(tmp_path)

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), port(run / "join") as one:
            await holding(one)
            assert one.offer is not None and one.offer.certificate
            async with port(run / "join", "none") as other:
                assert other.exchange is not None and other.offer is not None
                assert not other.offer.address  # a leaf
                held = other.exchange.held
                token = transfer_token(one.offer.key, "other", ROOT)
                other.exchange.fetch_from(source(one.offer, token))
                version = await held.arrive(ROOT, PIECES, PIECES)
                near = await other.exchange.bring(version, ByteCounter(), Nowhere(), RETRIES)
                assert near == sum(map(len, CONTENT))
                for number, content in enumerate(CONTENT):
                    assert version.chunks[str(number)].tobytes() == content

    asyncio.run(scenario())


def test_strangers_and_servers_without_a_token_get_nothing(tmp_path: Path) -> None:
    run, other_run = make_run(tmp_path / "run"), make_run(tmp_path / "other")
    chain = read_credentials(run / "join").chain
    foreign = read_credentials(other_run / "join").chain

    async def status(offer: m.PeerOffer, tls: ssl.SSLContext, token: str) -> int:
        url = f"https://{offer.address}/pieces/{ROOT}/0-0"
        headers = {"Authorization": f"Bearer {token}"}
        async with (
            aiohttp.ClientSession() as http,
            http.get(url, ssl=tls, headers=headers) as answer,
        ):
            return answer.status

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), port(run / "join") as one:
            await holding(one)
            offer = one.offer
            assert offer is not None and one.exchange is not None
            tls = fetching_tls(offer.certificate, chain)
            right = transfer_token(offer.key, "me", ROOT)
            assert await status(offer, tls, right) == 200
            assert await status(offer, tls, transfer_token(b"?" * 32, "me", ROOT)) == 401
            stranger = fetching_tls(offer.certificate, foreign)
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await status(offer, stranger, right)  # a certificate of another run
            async with port(run / "join") as another:
                assert another.offer is not None
                wrong = fetching_tls(another.offer.certificate, chain)
                with pytest.raises(aiohttp.ClientError):
                    await status(offer, wrong, right)  # it is not the server that was meant

    asyncio.run(scenario())


def test_without_the_setting_nothing_is_offered_and_a_wrong_address_is_one_line() -> None:
    async def offered(peers: bool, address: str) -> PeerPort:
        manager = Endpoint(address="127.0.0.1:1", credentials=Credentials(token="t"))
        async with peer_port(WeightsConfig(peers=peers), manager, address, print) as made:
            return made

    assert asyncio.run(offered(False, "")) == PeerPort()
    with pytest.raises(ConfigError, match=r"--peers='here:70000'.*HOST:PORT, HOST, or none"):
        asyncio.run(offered(True, "here:70000"))


def test_a_process_that_takes_a_killed_ones_place_serves_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrays, too, whose pieces are no consecutive bytes of theirs."""
    table = np.arange(6 * 500_000, dtype=np.float32).reshape(6, -1)
    halves = {(0, n): table[:, n * 250_000 : (n + 1) * 250_000].tobytes() for n in (0, 1)}
    files = tuple(
        FileEntry(
            path=f"table/{place[0]}.{place[1]}",
            size=len(half),
            sha256=hashlib.sha256(half).hexdigest(),
        )
        for place, half in halves.items()
    )
    leaf = m.LeafEntry(name="table", shape=table.shape, dtype="float32")
    pieces = PieceList(files=files, leaves=(leaf,))
    made: list[FileServer] = []

    def noted(*arguments: Any, **options: Any) -> FileServer:
        made.append(FileServer(*arguments, restarts=AT_ONCE, **options))
        return made[-1]

    monkeypatch.setattr("rlboost_jax.rollout.peer_port.FileServer", noted)
    run = make_run(tmp_path)
    chain = read_credentials(run / "join").chain

    async def fetched(offer: m.PeerOffer) -> bytes:
        tls, token = fetching_tls(offer.certificate, chain), transfer_token(offer.key, "me", ROOT)
        headers, url = {"Authorization": f"Bearer {token}"}, f"https://{offer.address}"
        async with aiohttp.ClientSession(headers=headers) as http:
            while True:
                with contextlib.suppress(aiohttp.ClientError):  # of the one that was killed
                    async with http.get(f"{url}/pieces/{ROOT}/0-1", ssl=tls) as answer:
                        if answer.status == 200:
                            return await answer.read()
                    async with http.get(f"{url}/held/{ROOT}?known=1", ssl=tls):
                        pass  # its orders are still on the way

    async def scenario() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS), port(run / "join") as one:
            assert one.exchange is not None and one.offer is not None
            async with one.exchange.held.arriving(ROOT, pieces, pieces) as version:
                version.params()["table"][...] = table
                one.exchange.held.add(version, files)
            del version
            assert await fetched(one.offer) == halves[0, 0] + halves[0, 1]
            assert made[0].pid is not None
            os.kill(made[0].pid, signal.SIGKILL)
            assert await fetched(one.offer) == halves[0, 0] + halves[0, 1]

    asyncio.run(scenario())


def test_without_such_memory_it_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    run = make_run(tmp_path)

    async def scenario() -> None:
        async with port(run / "join", "none") as made:
            assert made.exchange is not None  # who serves nobody needs none
        with pytest.raises(ConfigError, match=r"weights.peers=True: .*memfd.*--peers=none"):
            async with port(run / "join"):
                pass

    asyncio.run(scenario())
