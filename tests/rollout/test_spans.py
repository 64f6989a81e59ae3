"""What a server says of a profiled step, on the clock of a manager that is 1000 s ahead."""

import asyncio
import time

from rlboost_jax.messages import Announce, Generate, Renew, Renewed, Spans, TokenBatch, Welcome
from rlboost_jax.observe.spans import Recorder

AHEAD = 1000.0


def there() -> float:
    """The manager's clock."""
    return time.monotonic() + AHEAD


async def welcomed(manager):
    stream = await manager._streams.get()
    await stream.next()  # Hello
    await stream.send(Welcome(instance="i", renew_seconds=0.01, orphan_seconds=30.0, stamp=there()))
    return stream


async def spans_until(stream, done):
    """All spans until `done(them)`, with the largest of the errors; renewals are answered."""
    spans, error = [], 0.0
    async with asyncio.timeout(20):
        while not done(spans):
            match await stream._inbox.get():
                case Renew():
                    await stream.send(Renewed(stamp=there()))
                case Spans() as said:
                    spans += said.spans
                    error = max(error, said.clock_error)
    return spans, error


def test_a_dispatch_lies_between_the_work_and_its_tokens_on_the_managers_clock(fakes):
    async def scenario():
        spans = Recorder(7)
        async with fakes.serving(fakes.Engine(steps=4), fakes.Weights(), spans=spans) as (
            manager,
            _,
            _,
        ):
            stream = await welcomed(manager)
            announced = there()
            await stream.send(Announce(manifest=fakes.manifest(7)))
            await stream.next()  # Ready
            sent = there()
            requests = (fakes.request(1, tokens=8, version=7, step=7),)
            await stream.send(Generate(params_digest="d7", requests=requests))
            while not isinstance(batch := await stream.next(), TokenBatch) or not batch.tokens:
                pass
            received = there()
            assert batch.sequence == 1, "the first only says what is in flight"

            def both(spans):
                return sum(span.name == "dispatch" for span in spans) == 2

            found, error = await spans_until(stream, both)
            assert 0 < error < 1, "the fastest answer was not slower than that"
            (pull,) = [s for s in found if s.name == "pull"]
            assert pull.lane == "weights" and pull.args == {"version": 7}
            assert announced - error <= pull.start <= pull.start + pull.seconds <= sent + error
            first = min((s for s in found if s.name == "dispatch"), key=lambda s: s.start)
            assert first.args["sequence"] == 1 and first.args["tokens"] == 4
            assert sent - error <= first.start <= first.start + first.seconds <= received + error

    asyncio.run(scenario())


def test_other_steps_and_the_trainers_own_engine_say_nothing(fakes):
    async def scenario(puller, step):
        spans = Recorder(7)
        async with fakes.serving(fakes.Engine(steps=4), puller, spans=spans) as (
            manager,
            client,
            _,
        ):
            stream = await welcomed(manager)
            if puller is None:
                await client.offer({}, 1, "d1")
            else:
                await stream.send(Announce(manifest=fakes.manifest(1)))
            requests = (fakes.request(1, tokens=8, step=step),)
            await stream.send(Generate(params_digest="d1", requests=requests))
            seen = []
            while len(seen) < 3 or not all(isinstance(x, Renew) for x in seen[-2:]):
                seen.append(await stream._inbox.get())
            assert not [x for x in seen if isinstance(x, Spans)]
            return spans.take()[0]

    assert asyncio.run(scenario(fakes.Weights(), 6)) == []
    kept = asyncio.run(scenario(None, 7))
    assert {s.name for s in kept} <= {"dispatch"}, "which its trainer takes"
