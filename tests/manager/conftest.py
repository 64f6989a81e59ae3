"""A manager on loopback, and a client that speaks to it as servers and trainers do."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Record
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service import manager_app
from rlboost_jax.manager.service.manager_driver import SERVER_QUEUE_BYTES, Driver, Keep
from rlboost_jax.manager.settings import Settings
from rlboost_jax.trust.peer_limits import ALLOWANCE, Allowance
from rlboost_jax.trust.run_files import Tokens
from tests.manager.fakes import RUN, SNAPSHOTS, hello, settings
from tests.patience import PATIENCE_SECONDS

TOKENS = Tokens(server="secret", trainer="more secret")
HEADERS = {"Authorization": f"Bearer {TOKENS.trainer}"}
SERVER_HEADERS = {"Authorization": f"Bearer {TOKENS.server}"}
T = TypeVar("T")


class Loopback:
    """A driver with its routes behind a real socket."""

    def __init__(
        self,
        chosen: Settings,
        frame_bytes: int,
        keep: Keep,
        allowance: Allowance,
        first_frame_seconds: float,
        queue_bytes: int,
    ) -> None:
        self.records: list[Record] = []
        manager = Manager(chosen, asyncio.get_running_loop().time())
        self.driver = Driver(
            manager,
            lambda _, record: self.records.append(record),
            keep,
            server_queue_bytes=queue_bytes,
        )
        self.client: TestClient[Any, Any] = TestClient(
            TestServer(
                manager_app.make_app(
                    self.driver,
                    tokens=TOKENS,
                    config=b'{"run_id": "run"}',
                    snapshots=Path(SNAPSHOTS),
                    server_frame_bytes=frame_bytes,
                    allowance=allowance,
                    first_frame_seconds=first_frame_seconds,
                )
            )
        )

    async def dial(
        self, route: str, headers: dict[str, str] = HEADERS
    ) -> aiohttp.ClientWebSocketResponse:
        return await self.client.ws_connect(route, headers=headers, max_msg_size=m.MAX_FRAME_BYTES)


async def read(stream: aiohttp.ClientWebSocketResponse, kind: type, decode: Any) -> Any:
    """The next message of that kind."""
    async for frame in stream:
        message = decode(frame.data)
        if isinstance(message, kind):
            return message
    raise AssertionError(f"the stream ended before a {kind.__name__}")


async def join(loopback: Loopback, **changes: Any) -> aiohttp.ClientWebSocketResponse:
    stream = await loopback.dial("/instance")
    await stream.send_bytes(m.encode(hello(**changes)))
    await read(stream, m.Welcome, m.decode_to_server)
    return stream


async def open_trainer(loopback: Loopback) -> aiohttp.ClientWebSocketResponse:
    stream = await loopback.dial("/trainer")
    await stream.send_bytes(m.encode(m.TrainerHello(run_id=RUN, window=None)))
    await read(stream, m.TrainerWelcome, m.decode_to_trainer)
    return stream


class Open(Protocol):
    def __call__(self, **changes: Any) -> Any: ...


@asynccontextmanager
async def _loopback(
    frame_bytes: int = m.MAX_FRAME_BYTES,
    keep: Keep = lambda entries, done: done(""),
    allowance: Allowance = ALLOWANCE,
    first_frame_seconds: float = PATIENCE_SECONDS,
    queue_bytes: int = SERVER_QUEUE_BYTES,
    **changes: Any,
) -> AsyncIterator[Loopback]:
    # Patient: no test here waits for a lease to end, or for work that makes no progress.
    patient = {"manager__lease_seconds": 1e6, "manager__progress_seconds": 1e6}
    loopback = Loopback(
        settings(**{**patient, **changes}),
        frame_bytes,
        keep,
        allowance,
        first_frame_seconds,
        queue_bytes,
    )
    await loopback.client.start_server()
    try:
        yield loopback
    finally:
        await loopback.driver.close()
        await loopback.client.close()


@pytest.fixture
def loopback() -> Open:
    """`async with loopback(**changes of the settings) as loop`."""
    return _loopback


@pytest.fixture
def run() -> Callable[[Coroutine[Any, Any, T]], T]:
    """Run a coroutine to its end; a hang becomes a failure."""

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run(asyncio.wait_for(coroutine, timeout=PATIENCE_SECONDS))

    return run
