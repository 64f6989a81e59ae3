"""What a server says of a profiled step, on the clock of a manager that is 1000 s ahead."""

import asyncio
import time

from rlboost_jax.messages import (
    MAX_SPANS,
    Announce,
    Generate,
    Renew,
    Renewed,
    Spans,
    TokenBatch,
    Welcome,
)
from rlboost_jax.observe.span_recorder import Recorder
from tests.patience import PATIENCE_SECONDS

AHEAD = 1000.0


def there() -> float:
    """The manager's clock."""
    return time.monotonic() + AHEAD


class Manager:
    """The end of a stream that answers renewals and keeps what it hears of spans."""

    def __init__(self, stream):
        self.stream, self.spans, self.error, self.dropped = stream, [], 0.0, []

    async def heard(self):
        """The next message that is neither a renewal nor spans."""
        while isinstance(message := await self.next(), Renew | Spans):
            pass
        return message

    async def next(self):
        async with asyncio.timeout(PATIENCE_SECONDS):
            message = await self.stream._inbox.get()
        if isinstance(message, Renew):
            await self.stream.send(Renewed(stamp=there()))
        if isinstance(message, Spans):
            self.spans += message.spans
            self.error = max(self.error, message.clock_error)
            self.dropped.append(message.dropped)
        return message

    def named(self, name):
        return sorted((s for s in self.spans if s.name == name), key=lambda s: s.start)


async def welcomed(manager):
    stream = await manager._streams.get()
    await stream.next()  # Hello
    await stream.send(Welcome(instance="i", renew_seconds=0.01, orphan_seconds=30.0, stamp=there()))
    return Manager(stream)


def serving(fakes, puller, spans):
    return fakes.serving(fakes.Engine(steps=4), puller, spans=spans)


def test_a_dispatch_lies_between_the_work_and_its_tokens_on_the_managers_clock(fakes):
    async def scenario():
        async with serving(fakes, fakes.Weights(), Recorder(7)) as (manager, _, _):
            server = await welcomed(manager)
            announced = there()
            await server.stream.send(Announce(manifest=fakes.manifest(7)))
            await server.heard()  # Ready
            sent = there()
            requests = (fakes.request(1, tokens=8, version=7, step=7),)
            await server.stream.send(Generate(params_digest="d7", requests=requests))
            while not isinstance(batch := await server.heard(), TokenBatch) or not batch.tokens:
                pass
            received = there()
            assert batch.sequence == 1, "the first only says what is in flight"
            while len(server.named("dispatch")) < 2:
                await server.next()

            error = server.error
            assert 0 < error < 1, "the fastest answer was not slower than that"
            (pull,) = server.named("pull")
            assert pull.lane == "weights" and pull.args == {"version": 7}
            assert announced - error <= pull.start <= pull.start + pull.seconds <= sent + error
            first, _ = server.named("dispatch")
            assert first.args["sequence"] == 1 and first.args["tokens"] == 4
            assert sent - error <= first.start <= first.start + first.seconds <= received + error

    asyncio.run(scenario())


def test_many_spans_go_in_several_messages_and_those_there_was_no_room_for_are_told_once(fakes):
    spans = Recorder(7, limit=2 * MAX_SPANS + 1)
    for number in range(2 * MAX_SPANS + 4):
        spans.add("dispatch", "engine", number, number + 1.0)

    async def scenario():
        async with serving(fakes, fakes.Weights(), spans) as (manager, _, _):
            server = await welcomed(manager)
            while len(server.spans) < 2 * MAX_SPANS + 1:
                await server.next()
            return server

    server = asyncio.run(scenario())
    assert server.dropped == [3, 0, 0]
    first, *others = server.spans
    assert [s.start for s in others] == [first.start + n for n in range(1, 2 * MAX_SPANS + 1)]


def test_other_steps_and_the_trainers_own_engine_say_nothing(fakes):
    async def scenario(puller, step):
        spans = Recorder(7)
        async with serving(fakes, puller, spans) as (manager, client, _):
            server = await welcomed(manager)
            if puller is None:
                spans.at(7)  # as its trainer does; work of another step is an evaluation's
                await client.offer({}, 1, "d1")
            else:
                await server.stream.send(Announce(manifest=fakes.manifest(1)))
            assert (await server.heard()).version == 1  # Ready
            requests = (fakes.request(1, tokens=8, step=step),)
            await server.stream.send(Generate(params_digest="d1", requests=requests))
            tokens = 0
            while tokens < 8:
                tokens += len((await server.heard()).tokens) // 4
            for _ in range(3):
                while not isinstance(await server.next(), Renew):
                    pass
            assert not server.spans
            return spans.take()[0]

    assert asyncio.run(scenario(fakes.Weights(), 6)) == []
    kept = asyncio.run(scenario(None, 6))
    assert [s.name for s in kept] == ["dispatch"] * 2, "which its trainer takes"
