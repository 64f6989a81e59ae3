"""An engine without a model, and a manager without decisions."""

import asyncio
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import WSCloseCode, WSMsgType, web
from aiohttp.test_utils import TestServer

from rlboost_jax import messages
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.messages import Announce, GenerateRequest, Hello, Sampling, TokenBatch, Welcome
from rlboost_jax.rollout import manager_stream
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.sequences.identities import Work
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights import serve
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.pull import Pulled
from tests.endpoints import endpoint
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """No instance takes a manager for lost that a slow machine keeps waiting."""
    monkeypatch.setattr(manager_stream, "ANSWER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(manager_stream, "SILENCE_SECONDS", PATIENCE_SECONDS)


def expected_token(sample: int, position: int) -> int:
    return (sample * 7919 + position * 31) % 50_000


def expected_logprob(sample: int, position: int) -> float:
    return float(np.float32(-0.001 * expected_token(sample, position)))


class FakeEngine:
    """Every request yields `steps` tokens a dispatch; `gate` (if any) lets dispatches end.

    With `ahead`, a dispatch can be followed by another one before it ends.
    """

    def __init__(
        self, steps: int = 8, gate: threading.Semaphore | None = None, *, ahead: bool = False
    ):
        self.version, self.waiting, self._steps, self._gate = None, 0, steps, gate
        self._ahead = ahead
        self._left: dict[int, list[int]] = {}  # id → [sample, position, end]
        self._launched: list[dict[int, range]] = []  # id → positions
        self.loaded: list[object] = []
        self.error: Exception | None = None
        self.discarded = 0  # by each dispatch
        self.drafts: SpeculationCounts | None = None  # of each
        self.stops: list[bytes] = []  # of what was submitted

    @property
    def running(self) -> int:
        return len(self._left)

    @property
    def parameters(self) -> "FakeEngine":
        return self

    def prepare(self, params: object) -> object:
        return params

    def arriving(self, shapes: object) -> None:
        """Nothing goes to a device before the whole has come."""

    def load(self, params: object, version: int) -> None:
        assert not self._left and not self._launched
        self.version = version
        self.loaded.append(params)

    def submit(self, requests: list[GenerateRequest]) -> None:
        for r in requests:
            done = len(messages.unpack_tokens(r.response_tokens))
            self._left[r.request_id] = [r.work.sample, done, r.sampling.max_tokens]
            self.stops.append(r.sampling.stops)

    def release(self, request_ids: list[int]) -> list[int]:
        assert not self._launched
        return [i for i in request_ids if self._left.pop(i, None) is not None]

    def held(self) -> list[int]:
        return list(self._left)

    @property
    def in_flight(self) -> int:
        return sum(len(row) for rows in self._launched for row in rows.values())

    def begin(self) -> int:
        assert not self._launched
        return self._launch({i: at for i, (_, at, _) in self._left.items()})

    def follow(self) -> int:
        (rows,) = self._launched
        return self._launch({i: row.stop for i, row in rows.items()}) if self._ahead else 0

    def _launch(self, starts: dict[int, int]) -> int:
        ends = {i: self._left[i][2] for i in starts}
        rows = {i: range(at, min(at + self._steps, ends[i])) for i, at in starts.items()}
        rows = {i: row for i, row in rows.items() if row}
        if rows:
            self._launched.append(rows)
        return sum(map(len, rows.values()))

    def finish(self) -> SimpleNamespace:
        if self._gate is not None:
            assert self._gate.acquire(timeout=PATIENCE_SECONDS)
        if self.error is not None:
            raise self.error
        rows = self._launched.pop(0)
        places = [(self._left[i][0], at) for i, row in rows.items() for at in row]
        for i, row in rows.items():
            self._left[i][1] = row.stop
        self._left = {i: left for i, left in self._left.items() if left[1] < left[2]}
        return SimpleNamespace(
            version=self.version,
            request_ids=np.array(list(rows), np.uint32),
            counts=np.array([len(row) for row in rows.values()], np.uint16),
            tokens=np.array([expected_token(*place) for place in places], np.int32),
            logprobs=np.array([expected_logprob(*place) for place in places], np.float32),
            leads=np.zeros(len(rows), np.uint32),
            routes=None,
            prefilled_again=0,
            discarded=self.discarded,
            drafts=self.drafts,
        )


class FakeStream:
    """The manager's end of one stream."""

    def __init__(self, socket: web.WebSocketResponse):
        self.socket, self.frames = socket, []
        self._inbox: asyncio.Queue[messages.ServerMessage | None] = asyncio.Queue()

    async def read(self) -> None:
        try:
            async for frame in self.socket:
                if frame.type is WSMsgType.BINARY:
                    self.frames.append(frame.data)
                    self._inbox.put_nowait(messages.decode_server(frame.data))
        finally:  # the test server cancels handlers whose connection is lost
            self._inbox.put_nowait(None)

    async def send(self, message: messages.ToServer) -> None:
        await self.socket.send_bytes(messages.encode(message))

    async def next(self) -> messages.ServerMessage | None:
        """The next message other than Renew; None at the end."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while isinstance(message := await self._inbox.get(), messages.Renew):
                pass
            return message

    async def until(self, kind: type) -> list[messages.ServerMessage]:
        """Messages up to and including the first of that kind."""
        seen = []
        while not seen or not isinstance(seen[-1], kind):
            seen.append(await self.next())
            assert seen[-1] is not None, f"the stream ended without {kind.__name__}: {seen}"
        return seen

    async def next_renew(self) -> messages.Renew:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not isinstance(message := await self._inbox.get(), messages.Renew):
                pass
            return message


class Newest(serve.ServedVersions):
    """What a manager announces now, by any number."""

    def __init__(self, manager: "FakeManager") -> None:
        super().__init__()
        self._manager = manager

    async def find(self, version: int) -> serve.ServedVersion | None:
        manifest = self._manager.manifest
        return None if manifest is None else serve.served_version(manifest)


class FakeManager:
    token = "secret"

    def __init__(self, patience_seconds: float) -> None:
        self._patience_seconds = patience_seconds  # for a server to join
        self.welcome = Welcome(instance="i", renew_seconds=0.01, orphan_seconds=30.0)
        self.first: messages.ToServer | None = None  # said in place of Welcome
        self.recovers = 0  # so many dials are answered with "come again"
        self._streams: asyncio.Queue[FakeStream] = asyncio.Queue()
        self.app = web.Application()
        self.app.router.add_get("/instance", self._serve)
        self.app.router.add_get("/config", self._answer)
        self.manifest: messages.Manifest | None = None
        serve.add_routes(self.app, Newest(self))
        self.config: Callable[[], web.Response] = lambda: web.Response(status=404)

    async def _answer(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized
        return self.config()

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        if request.headers.get("Authorization") != f"Bearer {self.token}":
            raise web.HTTPUnauthorized
        if self.recovers:
            self.recovers -= 1
            raise web.HTTPServiceUnavailable
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        stream = FakeStream(socket)
        self._streams.put_nowait(stream)
        await stream.read()
        return socket

    async def accept(self) -> tuple[FakeStream, Hello]:
        """The next stream, welcomed."""
        async with asyncio.timeout(self._patience_seconds):
            stream = await self._streams.get()
        hello = await stream.next()
        assert isinstance(hello, Hello)
        await stream.send(self.first or self.welcome)
        return stream, hello

    async def drop(self, stream: FakeStream) -> None:
        await stream.socket.close(code=WSCloseCode.GOING_AWAY)


@asynccontextmanager
async def manager_at_work(patience_seconds=PATIENCE_SECONDS, tls=None):
    fake = FakeManager(patience_seconds)
    server = TestServer(fake.app)
    await server.start_server(ssl=tls)
    fake.address = f"{server.host}:{server.port}"
    yield fake
    await server.close()


def hello(reserved: bool = False) -> Hello:
    return Hello(
        instance="i",
        reserved=reserved,
        slots=4,
        slot_tokens=64,
        price_per_hour=1.0,
        zone="",
        host="h",
        device="none",
        fingerprint="f",
        nonce="1",
        fetches_lists=True,
    )


def request(
    i: int, *, tokens: int, version: int = 1, done: int = 0, step: int = 0
) -> GenerateRequest:
    return GenerateRequest(
        work=Work(seed=0, batch=step, prompt=0, sample=i),
        request_id=i,
        version=version,
        prompt_tokens=messages.pack_tokens([1, 2]),
        response_tokens=messages.pack_tokens([expected_token(i, at) for at in range(done)]),
        sampling=Sampling(temperature=1.0, top_p=1.0, top_k=0, max_tokens=tokens, stop_ids=()),
    )


def manifest(version: int) -> messages.Manifest:
    return messages.Manifest(
        version=version, directory="", params_digest=f"d{version}", list_sha256="list"
    )


class FakeWeights:
    """A puller; `broken` versions fail so many times, `held` ones wait."""

    def __init__(self, broken: dict[int, int] | None = None, held: set[int] | None = None):
        self.broken, self.held, self.pulls = broken or {}, held or set(), []
        self.let_go = asyncio.Event()
        self.pulled = ByteCounter()

    async def pull(self, manifest: messages.Manifest, begin: object = None) -> Pulled:
        self.pulls.append(manifest.version)
        if manifest.version in self.held:
            await self.let_go.wait()
        if self.broken.get(manifest.version, 0):
            self.broken[manifest.version] -= 1
            raise WeightsError("file w/0: 3 bytes, its manifest says 4")
        return Pulled(params={"version": manifest.version}, fetched_bytes=10)


@asynccontextmanager
async def serving(engine, puller, *, token="secret", spans=None, **options):
    """(manager, client, the task of `client.run`)."""
    options.setdefault("orphan_seconds", PATIENCE_SECONDS)
    async with manager_at_work() as manager:
        greeting = hello(reserved=puller is None)
        client = InstanceClient(
            lambda: endpoint(manager.address, token),
            greeting,
            EngineWorker(engine, spans),
            puller,
            **options,
        )
        running = asyncio.create_task(client.run())
        try:
            yield manager, client, running
        finally:
            client.leave("test over")
            await asyncio.wait({running})


async def ready(manager, version=1):
    stream, _ = await manager.accept()
    await stream.send(Announce(manifest=manifest(version)))
    assert (await stream.next()).version == version
    return stream


async def finished(stream, num_tokens) -> dict[int, list[int]]:
    """Collect tokens by request until there are so many."""
    tokens: dict[int, list[int]] = {}
    batches = []
    while sum(map(len, tokens.values())) < num_tokens:
        batch = await stream.next()
        assert isinstance(batch, TokenBatch)
        batches.append(batch.sequence)
        row = iter(messages.unpack_tokens(batch.tokens).tolist())
        ids = messages.unpack_ids(batch.request_ids).tolist()
        for i, count in zip(ids, messages.unpack_counts(batch.counts).tolist(), strict=True):
            tokens.setdefault(i, []).extend(next(row) for _ in range(count))
    assert batches == list(range(batches[0], batches[0] + len(batches)))
    return tokens


@pytest.fixture(scope="session")
def fakes() -> SimpleNamespace:
    """The classes above, and what tests make of them."""
    return SimpleNamespace(
        Engine=FakeEngine,
        Weights=FakeWeights,
        manager=manager_at_work,
        serving=serving,
        ready=ready,
        finished=finished,
        hello=hello,
        request=request,
        manifest=manifest,
        expected_token=expected_token,
        expected_logprob=expected_logprob,
    )
