"""How the trainer hears that its own engine is out of the fleet."""

import asyncio
import queue
from collections.abc import Iterator
from concurrent.futures import CancelledError
from functools import partial

import pytest

from rlboost_jax.engine.engine import Engine
from rlboost_jax.learner.fleet.reserved import ReservedEngine, ReservedEngineLost, ReservedEngines
from rlboost_jax.observe.clocks import RemoteClock
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.rollout.client import InstanceClient
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.trust.credentials import Credentials, Endpoint
from tests.patience import PATIENCE_SECONDS


class Client(InstanceClient):
    """Leaves when asked to."""

    def __init__(self, *_, **__) -> None:
        self.left: asyncio.Event = asyncio.Event()

    async def run(self) -> str:
        await self.left.wait()
        return "sent home"


@pytest.fixture
def thread() -> Iterator[EventLoopThread]:
    thread = EventLoopThread()
    yield thread
    thread.close()


@pytest.fixture
def failures() -> queue.SimpleQueue:
    return queue.SimpleQueue()


@pytest.fixture
def engine(config: RunConfig) -> Engine:
    return Engine(
        config.model, config.engine, slot_tokens=config.slot_tokens, truncated_sampling=False
    )


@pytest.fixture
def reserved(config, engine, thread, failures) -> Iterator[ReservedEngine]:
    reserved = ReservedEngine(engine, thread, on_failure=failures.put, client=Client)
    yield reserved
    reserved.close()


def nowhere() -> Endpoint:
    return Endpoint(address="127.0.0.1:9", credentials=Credentials(token="token"))


def test_leaving_is_a_failure(reserved, failures, thread):
    reserved.connect(nowhere)
    thread.loop.call_soon_threadsafe(reserved._client.left.set)
    failure = failures.get(timeout=PATIENCE_SECONDS)
    assert isinstance(failure, ReservedEngineLost) and "sent home" in str(failure)


def test_being_closed_is_none(reserved, failures, thread):
    reserved.connect(nowhere)
    ended = reserved._running
    reserved.close()
    with pytest.raises(CancelledError):
        ended.result(PATIENCE_SECONDS)
    assert failures.empty()


class Failing(Engine):
    def begin(self) -> int:
        raise ZeroDivisionError("in the engine")


def test_an_engine_that_failed_is_not_waited_for(config, thread, failures):
    engine = Failing(
        config.model, config.engine, slot_tokens=config.slot_tokens, truncated_sampling=False
    )
    reserved = ReservedEngine(engine, thread, on_failure=failures.put)
    reserved.connect(nowhere)
    assert isinstance(failures.get(timeout=PATIENCE_SECONDS), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError, match="in the engine"):
        reserved.load({}, 1, "digest")
    reserved.close()


class Offered(Client):
    """Notes what is offered to the engine of each name."""

    def __init__(self, log, locate, hello, *_, **__) -> None:
        super().__init__()
        self.log, self.name = log, hello.instance

    async def offer(self, params, version, digest) -> None:
        self.log.append((self.name, params, version, digest))


@pytest.mark.parametrize(("count", "names"), [(1, ["reserved"]), (2, ["reserved-0", "reserved-1"])])
def test_every_engine_has_a_name_and_gets_every_version(
    config, engine, thread, failures, count, names
):
    log = []
    engines = ReservedEngines(
        [engine] * count,
        thread,
        on_failure=failures.put,
        client=partial(Offered, log),
    )
    engines.connect(nowhere)
    engines.load({}, 3, "digest")
    assert sorted(log) == [(name, {}, 3, "digest") for name in names]
    engines.close()
    assert failures.empty()


def test_engines_of_several_slices_have_clocks_and_lanes_of_their_own(
    config, engine, thread, failures
):
    """Answers to several streams on one clock would be taken for each other."""
    clock, spans = RemoteClock(), Recorder(3)
    engines = ReservedEngines(
        [engine, engine], thread, on_failure=failures.put, spans=spans, clock=clock
    )
    first, second = engines._each
    assert first._clock is clock and second._clock is None
    assert (first._worker._lane, second._worker._lane) == ("engine-0", "engine-1")
    assert first._worker.spans is second._worker.spans is spans
