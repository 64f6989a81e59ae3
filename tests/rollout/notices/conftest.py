"""A metadata server that answers as it is set to, and its clients."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlboost_jax.rollout.notices import metadata_server, notice_watch
from rlboost_jax.rollout.notices.metadata_server import Metadata
from tests.patience import PATIENCE_SECONDS

Handler = Callable[[web.Request], web.Response]
LOCAL_TIME = 1_790_000_000.0  # what this machine's clock shows; the cloud's is far from it


@dataclass
class StandIn:
    """Routes by path; what is not there is 404, as in all clouds."""

    routes: dict[str, Handler] = field(default_factory=dict)
    asked: list[web.Request] = field(default_factory=list)
    address: str = ""
    metadata: Any = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request)
        handler = self.routes.get(request.path)
        answer = web.Response(status=404) if handler is None else handler(request)
        return await answer if asyncio.iscoroutine(answer) else answer

    def paths(self) -> list[str]:
        return [request.path for request in self.asked]


@asynccontextmanager
async def at_work(
    answer_seconds: float = PATIENCE_SECONDS, **options: float
) -> AsyncIterator[StandIn]:
    stand_in = StandIn()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", stand_in.answer)
    server = TestServer(app)
    await server.start_server()
    stand_in.address = f"http://{server.host}:{server.port}"
    async with aiohttp.ClientSession() as session:
        stand_in.metadata = Metadata(
            session,
            stand_in.address,
            clock=lambda: LOCAL_TIME,
            answer_seconds=answer_seconds,
            **options,
        )
        yield stand_in
    await server.close()


@pytest.fixture(autouse=True)
def connected(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long that takes: stand-ins are there."""
    monkeypatch.setattr(metadata_server, "CONNECT_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(notice_watch.which_cloud, "__defaults__", (PATIENCE_SECONDS,))


@pytest.fixture
def cloud() -> Callable[..., Any]:
    """`async with cloud() as stand_in`."""
    return at_work


@pytest.fixture
def run() -> Callable[..., Any]:
    """Run a coroutine to its end; a hang becomes a failure."""

    def run(coroutine: Any) -> Any:
        return asyncio.run(asyncio.wait_for(coroutine, timeout=PATIENCE_SECONDS))

    return run
