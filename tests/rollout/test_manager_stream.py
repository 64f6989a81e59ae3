"""A server's stream, against a manager that follows a script."""

import asyncio
import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax import messages
from rlboost_jax.engine.draft_policy import SpeculationCounts
from rlboost_jax.messages import (
    Announce,
    Generate,
    PromptText,
    Ready,
    Release,
    Released,
    Renewed,
    TokenBatch,
    WeightsRejected,
)
from rlboost_jax.rollout.renewal_timing import QUICKEST


def test_pulls_says_ready_and_streams_what_it_samples(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(steps=4), fakes.Weights()) as (manager, _, _):
            stream, hello = await manager.accept()
            assert hello == fakes.hello()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            answer = await stream.next()
            assert (answer.version, answer.fetched_bytes) == (1, 10) and answer.seconds >= 0
            requests = (fakes.request(1, tokens=9), fakes.request(2, tokens=6, done=5))
            await stream.send(Generate(params_digest="d1", requests=requests))
            tokens = await fakes.finished(stream, 10)
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
        async with fakes.serving(fakes.Engine(steps=8), fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            stream.frames.clear()
            requests = tuple(fakes.request(i, tokens=length) for i in range(rollouts))
            await stream.send(Generate(params_digest="d1", requests=requests))
            await fakes.finished(stream, rollouts * length)
            decoded = [(messages.decode_server(f), len(f)) for f in stream.frames]
            size = sum(n for message, n in decoded if isinstance(message, TokenBatch))
            assert size / (rollouts * length) <= 16

    asyncio.run(scenario())


def test_logprobs_travel_with_their_tokens(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(steps=8), fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(3, tokens=8),)))
            *_, batch = [await stream.next(), await stream.next()]
            wanted = np.array([fakes.expected_logprob(3, at) for at in range(8)], np.float32)
            np.testing.assert_array_equal(messages.unpack_logprobs(batch.logprobs), wanted)

    asyncio.run(scenario())


def test_the_lease_is_renewed_while_the_engine_computes(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        async with fakes.serving(fakes.Engine(gate=gate), fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(1, tokens=5),)))
            assert (await stream.next()).in_flight == 5
            for _ in range(3):
                await stream.next_renew()
            gate.release(9)

    asyncio.run(scenario())


def test_a_renewal_says_how_many_programs_were_compiled(fakes):
    async def scenario():
        counts = itertools.count()
        serving = fakes.serving(fakes.Engine(), fakes.Weights(), compiled=lambda: next(counts))
        async with serving as (manager, _, _):
            stream = await fakes.ready(manager)
            first, second = [(await stream.next_renew()).programs_compiled for _ in range(2)]
            assert second == first + 1

    asyncio.run(scenario())


def test_a_renewal_says_how_much_of_weights_has_come(fakes):
    async def scenario():
        weights = fakes.Weights()
        weights.pulled.add(1000)
        async with fakes.serving(fakes.Engine(), weights) as (manager, _, _):
            stream = await fakes.ready(manager)
            assert (await stream.next_renew()).pulled_bytes == 1000

    asyncio.run(scenario())


def test_renewals_say_what_drafts_came_to_and_nothing_where_there_were_none(fakes):
    async def scenario():
        engine = fakes.Engine(steps=4)
        engine.drafts = SpeculationCounts(steps=4, sequence_steps=8, drafted=10, tokens=11)
        async with fakes.serving(engine, fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            assert (await stream.next_renew()).drafts is None
            requests = (fakes.request(1, tokens=8), fakes.request(2, tokens=8))
            await stream.send(Generate(params_digest="d1", requests=requests))
            found = [0, 0, 0]
            while found[0] < 20:
                drafts = (await stream.next_renew()).drafts
                if drafts is not None:
                    more = (drafts.drafted, drafts.accepted, drafts.steps_saved)
                    found = [have + new for have, new in zip(found, more, strict=True)]
            assert found == [20, 6, 3], "one and a half steps by each dispatch"
            assert (await stream.next_renew()).drafts is None

    asyncio.run(scenario())


def test_stop_strings_reach_the_engine_and_a_renewal_says_what_was_discarded(fakes):
    async def scenario():
        engine = fakes.Engine(steps=4)
        engine.discarded = 3
        async with fakes.serving(engine, fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            requests = (fakes.request(1, tokens=8), fakes.request(2, tokens=8))
            stops = b"twelve bytes"
            await stream.send(Generate(params_digest="d1", requests=requests, stops=stops))
            found = 0
            while found < 6:
                found += (await stream.next_renew()).discarded
            assert (found, (await stream.next_renew()).discarded) == (6, 0)
            assert engine.stops == [stops] * 2

    asyncio.run(scenario())


def test_a_renewal_says_how_long_an_answer_took_without_what_the_manager_was_busy(fakes):
    async def scenario():
        async with fakes.serving(fakes.Engine(), fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)

            async def measured(busy):
                await stream.next_renew()
                await asyncio.sleep(0.01)  # which counts; that a thread waits to run does not
                await stream.send(Renewed(stamp=1.0, busy=busy))
                while not (found := (await stream.next_renew()).round_trip):
                    pass  # it was said before the answer was heard
                return found

            assert await measured(3.0) > QUICKEST
            assert await measured(1e6) == QUICKEST

    asyncio.run(scenario())


def test_released_comes_after_the_last_tokens(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=4, gate=gate)
        async with fakes.serving(engine, fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            await stream.send(
                Generate(params_digest="d1", requests=(fakes.request(1, tokens=4000),))
            )
            await stream.next()
            await stream.send(Release(request_ids=messages.pack_ids([1])))
            gate.release(2000)
            *before, released = await stream.until(Released)
            assert released.request_ids == messages.pack_ids([1])
            assert sum(len(m.tokens) // 4 for m in before) >= 4  # of the dispatch begun before
            await stream.send(Generate(params_digest="d1", requests=(fakes.request(2, tokens=4),)))
            assert list(await fakes.finished(stream, 4)) == [2]

    asyncio.run(scenario())


def test_refused_weights_are_fetched_again(fakes):
    async def scenario():
        weights = fakes.Weights(broken={1: 2})
        async with fakes.serving(fakes.Engine(), weights) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            *refused, answer = await stream.until(Ready)
            assert [type(m) for m in refused] == [WeightsRejected] * 2
            assert "w/0: 3 bytes" in refused[0].reason
            assert answer.version == 1 and weights.pulls == [1, 1, 1]

    asyncio.run(scenario())


@pytest.mark.parametrize("trouble", [{"held": {1}}, {"broken": {1: 10**6}}])
def test_only_the_newest_version_is_pursued(fakes, trouble):
    async def scenario():
        engine, weights = fakes.Engine(), fakes.Weights(**trouble)
        async with fakes.serving(engine, weights) as (manager, _, _):
            stream, _ = await manager.accept()
            await stream.send(Announce(manifest=fakes.manifest(1)))
            await stream.next_renew()
            await stream.send(Announce(manifest=fakes.manifest(2)))
            answers = await stream.until(Ready)
            assert answers[-1].version == 2
            assert {m.version for m in answers[:-1]} <= {1}
            weights.broken[1] = 0
            weights.let_go.set()
            await stream.send(Announce(manifest=fakes.manifest(3)))
            assert (await stream.next()).version == 3
            assert weights.pulls[-2:] == [2, 3]
            assert [params["version"] for params in engine.loaded] == [2, 3]

    asyncio.run(scenario())


def test_decoding_goes_on_while_weights_are_pulled(fakes):
    async def scenario():
        gate = threading.Semaphore(0)
        engine = fakes.Engine(steps=1, gate=gate)
        async with fakes.serving(engine, fakes.Weights(held={2})) as (manager, client, _):
            stream = await fakes.ready(manager)
            await stream.send(
                Generate(params_digest="d1", requests=(fakes.request(1, tokens=1000),))
            )
            await stream.next()
            await stream.send(Announce(manifest=fakes.manifest(2)))
            await stream.next_renew()
            gate.release(3)
            await fakes.finished(stream, 3)  # of version 1
            await stream.send(Announce(manifest=fakes.manifest(3)))
            while client._worker._commands.empty():  # the new one waits for the gate
                await asyncio.sleep(0.001)
            gate.release(1000)
            *before, answer = await stream.until(Ready)
            assert answer.version == 3 and isinstance(before[-1], Released)
            assert {m.version for m in before if isinstance(m, TokenBatch)} == {1}

    asyncio.run(scenario())


def test_other_parameters_of_the_same_number_are_pulled(fakes):
    async def scenario():
        weights = fakes.Weights()
        async with fakes.serving(fakes.Engine(), weights) as (manager, _, _):
            stream = await fakes.ready(manager)
            other = messages.Manifest(
                version=1, directory="", params_digest="other", list_sha256="list"
            )
            await stream.send(Announce(manifest=other))
            assert (await stream.next()).version == 1
            assert weights.pulls == [1, 1]

    asyncio.run(scenario())


def test_the_trainers_own_engine_is_offered_its_weights(fakes):
    async def scenario():
        engine = fakes.Engine()
        async with fakes.serving(engine, None) as (manager, client, _):
            await client.offer({"mine": 1}, 4, "d4")
            stream, hello = await manager.accept()
            assert hello.reserved
            assert await stream.next() == Ready(version=4, params_digest="d4")
            await stream.send(Announce(manifest=fakes.manifest(5)))  # not for it
            await client.offer({"mine": 2}, 5, "d5")
            assert await stream.next() == Ready(version=5, params_digest="d5")
            assert engine.loaded == [{"mine": 1}, {"mine": 2}]
            await manager.drop(stream)
            again, _ = await manager.accept()
            assert await again.next() == Ready(version=5, params_digest="d5")

    asyncio.run(scenario())


def test_texts_of_earlier_epochs_reach_the_engine_before_their_requests(fakes):
    class Texts:
        def __init__(self, engine):
            self.engine, self.found = engine, []

        def offer(self, texts, limits):
            assert limits == "its limits" and not self.engine.held()
            self.found += texts

    async def scenario():
        engine = fakes.Engine(steps=4)
        engine.texts, engine.limits = Texts(engine), "its limits"
        async with fakes.serving(engine, fakes.Weights()) as (manager, _, _):
            stream = await fakes.ready(manager)
            requests = (fakes.request(1, tokens=8), fakes.request(2, tokens=8))
            texts = (PromptText(request=1, tokens=b"four"), PromptText(request=1, tokens=b""))
            await stream.send(Generate(params_digest="d1", requests=requests, texts=texts))
            await fakes.finished(stream, 16)
            prompt = requests[1].prompt_tokens
            assert engine.texts.found == [(prompt, b"four"), (prompt, b"")]

    asyncio.run(scenario())
