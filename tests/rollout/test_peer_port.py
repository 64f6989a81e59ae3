"""A server's port for others that fetch weights: its process, TLS and transfer tokens."""

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from rlboost_jax import messages as m
from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rollout.peer_port import PeerPort, peer_port
from rlboost_jax.settings.weights_config import WeightsConfig
from rlboost_jax.trust.credentials import Credentials, Endpoint, read_credentials
from rlboost_jax.trust.transfers import fetching_tls, transfer_token
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import RETRIES
from tests.certificates import make_run
from tests.patience import PATIENCE_SECONDS

ROOT = "a" * 64
CONTENT = [hashlib.shake_256(bytes([n])).digest(400_000) for n in range(6)]
FILES = [
    FileEntry(path=str(n), size=len(c), sha256=hashlib.sha256(c).hexdigest())
    for n, c in enumerate(CONTENT)
]


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
    version = await held.arrive(ROOT, FILES)
    for number, content in enumerate(CONTENT):
        (version.folder / FILES[number].path).write_bytes(content)
        held.add(version, [number])
    await held.complete(version)


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
                version = await held.arrive(ROOT, FILES)
                near = await other.exchange.bring(
                    version, set(range(len(FILES))), ByteCounter(), Nowhere(), RETRIES
                )
                assert near == sum(map(len, CONTENT))
                for number, content in enumerate(CONTENT):
                    assert (version.folder / str(number)).read_bytes() == content
                await held.close()
            assert one.exchange is not None
            await one.exchange.held.close()

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
            await one.exchange.held.close()

    asyncio.run(scenario())


def test_without_the_setting_nothing_is_offered_and_a_wrong_address_is_one_line() -> None:
    async def offered(peers: bool, address: str) -> PeerPort:
        manager = Endpoint(address="127.0.0.1:1", credentials=Credentials(token="t"))
        async with peer_port(WeightsConfig(peers=peers), manager, address, print) as made:
            return made

    assert asyncio.run(offered(False, "")) == PeerPort()
    with pytest.raises(ConfigError, match=r"--peers='here:70000'.*HOST:PORT, HOST, or none"):
        asyncio.run(offered(True, "here:70000"))
