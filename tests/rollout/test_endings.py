"""How a stream ends, and what a server does then."""

import asyncio
import threading

import msgspec
import pytest

from rlboost_jax.messages import (
    Announce,
    Generate,
    Goodbye,
    Leave,
    Welcome,
)
from rlboost_jax.rollout.client import FIRST_BACKOFF_SECONDS, InstanceClient
from rlboost_jax.rollout.engine_worker import EngineWorker
from rlboost_jax.rollout.manager_stream import ServerRejected
from tests.endpoints import endpoint
from tests.patience import PATIENCE_SECONDS

POLITE = {"leave_seconds": PATIENCE_SECONDS}  # for the goodbye


def test_a_fresh_stream_begins_with_nothing_held(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=1, gate=gate)
        weights = fakes.Weights()
        async with fakes.serving(engine, weights) as (manager, _, _):
            stream = await fakes.ready(manager)
            await stream.send(
                Generate(params_digest="d1", requests=(fakes.request(1, tokens=1000),))
            )
            await stream.next()
            gate.release(5)
            await fakes.finished(stream, 5)
            await manager.drop(stream)
            gate.release(1000)
            again = await fakes.ready(manager)
            assert engine.held() == [] and weights.pulls == [1]  # it has that version
            await again.send(Generate(params_digest="d1", requests=(fakes.request(2, tokens=3),)))
            batch = await again.next()
            assert (batch.sequence, batch.in_flight) == (0, 1)
            assert list(await fakes.finished(again, 3)) == [2]

    asyncio.run(scenario())


def test_a_frame_that_is_no_message_ends_the_stream_only(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.socket.send_bytes(b"\xc1nonsense")
            assert await stream.next() is None
            await fakes.ready(manager)

    asyncio.run(scenario())


def test_leaves_after_what_the_dispatch_yields(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=4, gate=gate)
        async with fakes.serving(engine, fakes.Weights(), **POLITE) as (manager, client, running):
            stream = await fakes.ready(manager)
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(1, tokens=50),)))
            assert (await stream.next()).in_flight == 4
            client.leave("SIGTERM")
            gate.release(99)
            *batches, goodbye = await stream.until(Goodbye)
            assert goodbye == Goodbye(reason="SIGTERM")
            announced = 4 + sum(batch.in_flight for batch in batches)
            assert sum(len(batch.tokens) // 4 for batch in batches) == announced
            assert await stream.next() is None
            assert await running == "SIGTERM"

    asyncio.run(scenario())


def test_leaves_without_a_word_when_the_dispatch_does_not_end(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        async with fakes.serving(fakes.Engine(gate=gate), fakes.Weights(), leave_seconds=0.05) as (
            manager,
            client,
            running,
        ):
            stream = await fakes.ready(manager)
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(1, tokens=50),)))
            await stream.next()
            client.leave("SIGTERM")
            assert await running == "SIGTERM"
            assert await stream.next() is None  # no Goodbye: its tokens were not all sent
            gate.release(99)

    asyncio.run(scenario())


def test_leaves_when_asked_to(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights(), **POLITE) as (
            manager,
            _,
            running,
        ):
            stream = await fakes.ready(manager)
            await stream.send(Leave(reason="the run is over"))
            assert await stream.next() == Goodbye(reason="the run is over")
            assert await running == "the run is over"

    asyncio.run(scenario())


def test_leaves_when_no_manager_comes_back(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, running):
            manager.welcome = Welcome(instance="i", renew_seconds=1.0, orphan_seconds=0.0)
            stream, _ = await manager.accept()
            await manager.drop(stream)
            assert await running == "no manager for 0 s"

    asyncio.run(scenario())


def test_a_manager_that_reads_its_journal_is_waited_for(fakes):
    """Longer than one that does not answer at all."""

    async def waited_for(seconds):
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, running):
            manager.welcome = Welcome(instance="i", renew_seconds=1.0, orphan_seconds=seconds)
            stream, _ = await manager.accept()
            longer = 1 + round(seconds / (FIRST_BACKOFF_SECONDS / 2))
            manager.recovers = longer
            await manager.drop(stream)
            again = asyncio.create_task(manager.accept())
            await asyncio.wait({again, running}, return_when=asyncio.FIRST_COMPLETED)
            if again.done():
                assert not manager.recovers and not running.done()
                return True
            again.cancel()
            assert manager.recovers == longer, "it said so, and was not waited for"
            return False  # before this machine let it dial

    seconds = 0.5
    while not asyncio.run(waited_for(seconds)):
        seconds *= 2
        assert seconds < PATIENCE_SECONDS


def test_looks_for_its_first_manager_as_long_as_it_was_set(fakes):
    client = InstanceClient(
        lambda: endpoint("127.0.0.1:9"),
        fakes.hello(),
        EngineWorker(fakes.Engine()),
        None,
        orphan_seconds=0.0,
    )
    assert asyncio.run(client.run()) == "no manager for 0 s"


def test_the_trainers_own_engine_outlasts_its_managers(fakes):
    """One sends it home and goes; the next, elsewhere, finds it ready for work."""

    async def scenario():
        async with fakes.manager() as first, fakes.manager() as second:
            first.welcome = second.welcome = Welcome(
                instance="i", renew_seconds=1.0, orphan_seconds=0.0
            )
            managers = [first]
            client = InstanceClient(
                lambda: endpoint(managers[-1].address),
                fakes.hello(reserved=True),
                EngineWorker(fakes.Engine()),
                None,
                orphan_seconds=0.0,
            )
            running = asyncio.create_task(client.run())
            stream, _ = await first.accept()
            await client.offer({}, 4, "d4")
            offered = await stream.next()
            assert offered.version == 4
            await stream.send(Leave(reason="SIGTERM"))
            managers.append(second)
            await first.drop(stream)
            again, _ = await second.accept()
            assert await again.next() == offered
            assert not running.done()
            running.cancel()
            await asyncio.wait({running})

    asyncio.run(scenario())


def test_an_engine_that_no_manager_can_be_found_for_ends_with_the_reason(fakes):
    def locate():
        raise ZeroDivisionError("no manager to be had")

    client = InstanceClient(locate, fakes.hello(reserved=True), EngineWorker(fakes.Engine()), None)
    with pytest.raises(ZeroDivisionError, match="to be had"):
        asyncio.run(client.run())


@pytest.mark.parametrize(("settled_seconds", "attempts"), [(1e6, [0, 1, 2]), (0.0, [0, 0, 0])])
def test_the_pause_grows_until_a_stream_has_lived(fakes, settled_seconds, attempts):
    """A manager that welcomes this server and soon hangs up on it is left in peace."""
    seen = []

    async def scenario():
        async with fakes.serving(
            fakes.Engine(),
            fakes.Weights(),
            settled_seconds=settled_seconds,
            backoff=lambda attempt: seen.append(attempt) or 0.0,
        ) as (manager, _, _):
            for _ in attempts:
                stream = await fakes.ready(manager)
                await manager.drop(stream)
            await fakes.ready(manager)

    asyncio.run(scenario())
    assert seen == attempts


def test_a_wrong_token_is_final(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights(), token="guess") as (_, _, running):
            with pytest.raises(ServerRejected, match="wrong token"):
                await running

    asyncio.run(scenario())


def test_leave_in_place_of_welcome_is_final(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, running):
            manager.first = Leave(reason="the name 'i' is taken; give --name another")
            await manager.accept()
            with pytest.raises(ServerRejected, match="is taken"):
                await running

    asyncio.run(scenario())


def test_a_manager_of_a_release_before_is_final(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, running):
            stream, _ = await manager.accept()
            old = msgspec.structs.replace(fakes.manifest(1), list_sha256="")
            await stream.send(Announce(manifest=old))
            with pytest.raises(ServerRejected, match="install the manager's release here"):
                await running

    asyncio.run(scenario())


def test_an_exception_of_the_engine_ends_the_run(fakes):
    async def scenario():
        engine = fakes.Engine()
        async with fakes.serving(engine, fakes.Weights()) as (manager, _, running):
            stream = await fakes.ready(manager)
            engine.error = ZeroDivisionError("in the engine")
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(1, tokens=5),)))
            with pytest.raises(ZeroDivisionError, match="in the engine"):
                await running
            *before, last = await drained(stream)
            assert last == Goodbye(reason="failed: ZeroDivisionError: in the engine", failed=True)
            # The dispatch was announced; what it would have yielded is sent by nobody.
            assert [(b.in_flight, b.tokens) for b in before] == [(5, b"")]

    asyncio.run(scenario())


def test_a_mistake_while_pulling_ends_the_run(fakes):
    class Broken(fakes.Weights):
        async def pull(self, manifest, begin=None):
            raise ZeroDivisionError("in the puller")

    async def scenario():
        async with fakes.serving(fakes.Engine(), Broken()) as (manager, _, running):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            with pytest.raises(ZeroDivisionError, match="in the puller"):
                await running
            assert (await drained(stream))[-1].failed

    asyncio.run(scenario())


async def drained(stream):
    seen = []
    while (message := await stream.next()) is not None:
        seen.append(message)
    return seen
