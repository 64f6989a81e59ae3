"""A server's stream, against a manager that follows a script."""

import asyncio
import threading
from contextlib import asynccontextmanager

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax import messages
from rlboost_jax.messages import (
    Announce,
    Generate,
    Goodbye,
    Leave,
    Ready,
    Release,
    Released,
    TokenBatch,
    WeightsRejected,
    Welcome,
)
from rlboost_jax.rollout import stream as module
from rlboost_jax.rollout.stream import InstanceClient, Refused
from rlboost_jax.rollout.worker import Worker
from rlboost_jax.weights.names import WeightsError
from rlboost_jax.weights.pull import Pulled

PATIENCE_SECONDS = 20.0


class Weights:
    """A puller; `broken` versions fail so many times, `held` ones wait."""

    def __init__(self, broken: dict[int, int] | None = None, held: set[int] | None = None):
        self.broken, self.held, self.pulls = broken or {}, held or set(), []

    async def pull(self, manifest: messages.Manifest) -> Pulled:
        self.pulls.append(manifest.version)
        if manifest.version in self.held:
            await asyncio.Event().wait()
        if self.broken.get(manifest.version, 0):
            self.broken[manifest.version] -= 1
            raise WeightsError("file w/0: 3 bytes, its manifest says 4")
        return Pulled(params={"version": manifest.version}, fetched_bytes=10)


@asynccontextmanager
async def serving(fakes, engine, puller, *, token="secret", **options):
    """(manager, client, the task of `client.run`)."""
    async with fakes.manager() as manager:
        hello = fakes.hello(reserved=puller is None)
        client = InstanceClient(manager.address, token, hello, Worker(engine), puller, **options)
        running = asyncio.create_task(client.run())
        try:
            yield manager, client, running
        finally:
            client.leave("test over")
            await asyncio.wait({running})


async def ready(fakes, manager, version=1):
    stream, _ = await manager.accept()
    await stream.send(Announce(manifest=fakes.manifest(version)))
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


def test_pulls_says_ready_and_streams_what_it_samples(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(steps=4), Weights()) as (manager, _, _):
            stream, hello = await manager.accept()
            assert hello == fakes.hello()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            answer = await stream.next()
            assert (answer.version, answer.fetched_bytes) == (1, 10) and answer.seconds >= 0
            requests = (fakes.request(1, tokens=9), fakes.request(2, tokens=6, done=5))
            await stream.send(Generate(requests=requests))
            tokens = await finished(stream, 10)
            assert tokens == {
                1: [fakes.expected_token(1, at) for at in range(9)],
                2: [fakes.expected_token(2, 5)],
            }

    asyncio.run(scenario())


@settings(max_examples=20, deadline=None)
@given(rollouts=st.integers(8, 64), length=st.integers(64, 200))
def test_at_most_16_bytes_a_token(fakes, rollouts, length):
    """Frames as they are on the wire, of a server with a few dozen rollouts."""

    async def scenario():
        async with serving(fakes, fakes.Engine(steps=8), Weights()) as (manager, _, _):
            stream = await ready(fakes, manager)
            stream.frames.clear()
            requests = tuple(fakes.request(i, tokens=length) for i in range(rollouts))
            await stream.send(Generate(requests=requests))
            await finished(stream, rollouts * length)
            decoded = [(messages.decode_server(f), len(f)) for f in stream.frames]
            size = sum(n for message, n in decoded if isinstance(message, TokenBatch))
            assert size / (rollouts * length) <= 16

    asyncio.run(scenario())


def test_logprobs_travel_with_their_tokens(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(steps=8), Weights()) as (manager, _, _):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(3, tokens=8),)))
            *_, batch = [await stream.next(), await stream.next()]
            wanted = np.array([fakes.expected_logprob(3, at) for at in range(8)], np.float32)
            np.testing.assert_array_equal(messages.unpack_logprobs(batch.logprobs), wanted)

    asyncio.run(scenario())


def test_the_lease_is_renewed_while_the_engine_computes(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        async with serving(fakes, fakes.Engine(gate=gate), Weights()) as (manager, _, _):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=5),)))
            assert (await stream.next()).in_flight == 5
            for _ in range(3):
                await stream.next_renew()
            gate.release(9)

    asyncio.run(scenario())


def test_released_comes_after_the_last_tokens(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=4, gate=gate)
        async with serving(fakes, engine, Weights()) as (manager, _, _):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=4000),)))
            await stream.next()
            await stream.send(Release(request_ids=messages.pack_ids([1])))
            gate.release(2000)
            *before, released = await stream.until(Released)
            assert released.request_ids == messages.pack_ids([1])
            assert sum(len(m.tokens) // 4 for m in before) >= 4  # of the dispatch begun before
            await stream.send(Generate(requests=(fakes.request(2, tokens=4),)))
            assert list(await finished(stream, 4)) == [2]

    asyncio.run(scenario())


def test_refused_weights_are_fetched_again(fakes):
    async def scenario():
        weights = Weights(broken={1: 2})
        async with serving(fakes, fakes.Engine(), weights) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            *refused, answer = await stream.until(Ready)
            assert [type(m) for m in refused] == [WeightsRejected] * 2
            assert "w/0: 3 bytes" in refused[0].reason
            assert answer.version == 1 and weights.pulls == [1, 1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("weights", [Weights(held={1}), Weights(broken={1: 10**6})])
def test_only_the_newest_version_is_pursued(fakes, weights):
    async def scenario():
        async with serving(fakes, fakes.Engine(), weights) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            await stream.next_renew()
            await stream.send(Announce(manifest=fakes.manifest(2)))
            answers = await stream.until(Ready)
            assert answers[-1].version == 2
            assert {m.version for m in answers[:-1]} <= {1}
            assert weights.pulls[-1] == 2

    asyncio.run(scenario())


def test_decoding_goes_on_while_weights_are_pulled(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=1, gate=gate)
        async with serving(fakes, engine, Weights(held={2})) as (manager, _, _):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=1000),)))
            await stream.next()
            await stream.send(Announce(manifest=fakes.manifest(2)))
            await stream.next_renew()
            gate.release(3)
            await finished(stream, 3)  # of version 1
            await stream.send(Announce(manifest=fakes.manifest(3)))
            await stream.next_renew()
            gate.release(1000)
            *before, answer = await stream.until(Ready)
            assert answer.version == 3 and isinstance(before[-1], Released)
            assert {m.version for m in before if isinstance(m, TokenBatch)} == {1}

    asyncio.run(scenario())


def test_a_fresh_stream_begins_with_nothing_held(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=1, gate=gate)
        weights = Weights()
        async with serving(fakes, engine, weights) as (manager, _, _):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=1000),)))
            await stream.next()
            gate.release(5)
            await finished(stream, 5)
            await manager.drop(stream)
            gate.release(1000)
            again = await ready(fakes, manager)
            assert engine.held() == [] and weights.pulls == [1]  # it has that version
            await again.send(Generate(requests=(fakes.request(2, tokens=3),)))
            batch = await again.next()
            assert (batch.sequence, batch.in_flight) == (0, 1)
            assert list(await finished(again, 3)) == [2]

    asyncio.run(scenario())


def test_other_parameters_of_the_same_number_are_pulled(fakes):
    async def scenario():
        weights = Weights()
        async with serving(fakes, fakes.Engine(), weights) as (manager, _, _):
            stream = await ready(fakes, manager)
            other = messages.Manifest(
                version=1, directory="", params_digest="other", files=(), leaves=()
            )
            await stream.send(Announce(manifest=other))
            assert (await stream.next()).version == 1
            assert weights.pulls == [1, 1]

    asyncio.run(scenario())


def test_a_frame_that_is_no_message_ends_the_stream_only(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(), Weights()) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.socket.send_bytes(b"\xc1nonsense")
            assert await stream.next() is None
            await ready(fakes, manager)

    asyncio.run(scenario())


def test_leaves_after_what_the_dispatch_yields(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=4, gate=gate)
        async with serving(fakes, engine, Weights()) as (manager, client, running):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=50),)))
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


def test_leaves_without_a_word_when_the_dispatch_does_not_end(fakes, monkeypatch):
    monkeypatch.setattr(module, "LEAVE_SECONDS", 0.05)

    async def scenario():
        gate = threading.Semaphore(0)
        async with serving(fakes, fakes.Engine(gate=gate), Weights()) as (manager, client, running):
            stream = await ready(fakes, manager)
            await stream.send(Generate(requests=(fakes.request(1, tokens=50),)))
            await stream.next()
            client.leave("SIGTERM")
            assert await running == "SIGTERM"
            assert await stream.next() is None  # no Goodbye: its tokens were not all sent
            gate.release(99)

    asyncio.run(scenario())


def test_leaves_when_told_to(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(), Weights()) as (manager, _, running):
            stream = await ready(fakes, manager)
            await stream.send(Leave(reason="the run is over"))
            assert await stream.next() == Goodbye(reason="the run is over")
            assert await running == "the run is over"

    asyncio.run(scenario())


def test_leaves_when_no_manager_comes_back(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(), Weights()) as (manager, _, running):
            manager.welcome = Welcome(instance="i", renew_seconds=1.0, orphan_seconds=0.0)
            stream, _ = await manager.accept()
            await manager.drop(stream)
            assert await running == "no manager for 0 s"

    asyncio.run(scenario())


def test_looks_for_its_first_manager_as_long_as_it_was_told(fakes):
    client = InstanceClient(
        "127.0.0.1:9", "t", fakes.hello(), Worker(fakes.Engine()), None, orphan_seconds=0.0
    )
    assert asyncio.run(client.run()) == "no manager for 0 s"


def test_a_wrong_token_is_final(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(), Weights(), token="guess") as (_, _, running):
            with pytest.raises(Refused, match="wrong token"):
                await running

    asyncio.run(scenario())


def test_leave_in_place_of_welcome_is_final(fakes):
    async def scenario():
        async with serving(fakes, fakes.Engine(), Weights()) as (manager, _, running):
            manager.first = Leave(reason="the name 'i' is taken; give --name another")
            await manager.accept()
            with pytest.raises(Refused, match="is taken"):
                await running

    asyncio.run(scenario())


def test_an_exception_of_the_engine_ends_the_run(fakes):
    async def scenario():
        engine = fakes.Engine()
        async with serving(fakes, engine, Weights()) as (manager, _, running):
            stream = await ready(fakes, manager)
            engine.error = ZeroDivisionError("in the engine")
            await stream.send(Generate(requests=(fakes.request(1, tokens=5),)))
            with pytest.raises(ZeroDivisionError, match="in the engine"):
                await running
            assert not any(isinstance(m, Goodbye) for m in await drained(stream))

    asyncio.run(scenario())


def test_a_mistake_while_pulling_ends_the_run(fakes):
    class Broken:
        async def pull(self, manifest):
            raise ZeroDivisionError("in the puller")

    async def scenario():
        async with serving(fakes, fakes.Engine(), Broken()) as (manager, _, running):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            with pytest.raises(ZeroDivisionError, match="in the puller"):
                await running

    asyncio.run(scenario())


def test_the_trainers_own_engine_is_offered_its_weights(fakes):
    async def scenario():
        engine = fakes.Engine()
        async with serving(fakes, engine, None) as (manager, client, _):
            await client.offer({"mine": 1}, 4)
            stream, hello = await manager.accept()
            assert hello.reserved
            assert await stream.next() == Ready(version=4)
            await stream.send(Announce(manifest=fakes.manifest(5)))  # not for it
            await client.offer({"mine": 2}, 5)
            assert await stream.next() == Ready(version=5)
            assert engine.loaded == [{"mine": 1}, {"mine": 2}]
            await manager.drop(stream)
            again, _ = await manager.accept()
            assert await again.next() == Ready(version=5)

    asyncio.run(scenario())


async def drained(stream):
    seen = []
    while (message := await stream.next()) is not None:
        seen.append(message)
    return seen
