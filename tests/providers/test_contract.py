"""What every provider promises, shown for each: `rlboost_jax.providers.base` says it in words."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.platform import durable
from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Listed,
    Provider,
    ProviderEvent,
    Refused,
    Started,
    Withdrawn,
)
from tests.patience import PATIENCE_SECONDS
from tests.providers.benches import (
    BENCHES,
    CODE,
    LATE,
    TROUBLED,
    Bench,
    LateBench,
    TroubledBench,
)

ENDS = Refused | Exited


@pytest.fixture(params=BENCHES, ids=lambda bench: bench.__name__)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return built(request, tmp_path)


@pytest.fixture(params=[b for b in BENCHES if b.grants], ids=lambda bench: bench.__name__)
def granting(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return built(request, tmp_path)


@pytest.fixture(params=LATE, ids=lambda bench: bench.__name__)
def late(request: pytest.FixtureRequest, tmp_path: Path) -> LateBench:
    return built(request, tmp_path)


@pytest.fixture(params=TROUBLED, ids=lambda bench: bench.__name__)
def troubled(request: pytest.FixtureRequest, tmp_path: Path) -> TroubledBench:
    return built(request, tmp_path)


def built(request: pytest.FixtureRequest, folder: Path) -> Any:
    made = request.param(folder)
    request.addfinalizer(getattr(made, "close", lambda: None))
    return made


class Ear:
    """Hears all events of a provider."""

    def __init__(self, provider: Provider) -> None:
        self.heard: list[ProviderEvent] = []
        self._more = asyncio.Condition()
        self._task = asyncio.create_task(self._listen(provider))

    async def of(self, name: str, kind: type | object) -> ProviderEvent:
        """The first event of that kind about an instance."""
        async with self._more:
            await self._more.wait_for(lambda: self._found(name, kind))
        return self._found(name, kind)[0]

    async def whole(self) -> dict[str, list[ProviderEvent]]:
        """Everything, by name, once the provider is closed. Each story has one end."""
        await self._task
        stories: dict[str, list[ProviderEvent]] = {}
        for event in self.heard:
            stories.setdefault(event.name, []).append(event)
        for name, story in stories.items():
            kinds = [type(event) for event in story]
            whole = [Granted, Started, Withdrawn, Exited]
            assert kinds in ([Refused], [kind for kind in whole if kind in kinds]), name
            assert kinds[0] in (Refused, Granted) and isinstance(story[-1], ENDS), name
            assert len({event.nonce for event in story}) == 1, name
        return stories

    def _found(self, name: str, kind: type | object) -> list[ProviderEvent]:
        return [e for e in self.heard if e.name == name and isinstance(e, kind)]  # type: ignore[arg-type]

    async def _listen(self, provider: Provider) -> None:
        async for event in provider.events():
            async with self._more:
                self.heard.append(event)
                self._more.notify_all()


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story()

    asyncio.run(limited())


def test_each_request_is_answered_and_ends_once(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.open()
        assert await provider.list() == ()
        ear = Ear(provider)
        names = ["local-1", "local-2", "local-3"]
        await asyncio.gather(*(provider.request(n, f"nonce-{n}", ANY_POOL) for n in names))
        for name in names:
            answer = await ear.of(name, Granted | Refused)
            assert isinstance(answer, Granted) == bench.grants and answer.nonce == f"nonce-{name}"
        for name in names:
            await provider.terminate(name, 0.0)
            await ear.of(name, ENDS)
        assert await provider.list() == ()
        await provider.close()
        assert (await ear.whole()).keys() == set(names)

    play(story)


def test_a_nonce_is_good_for_one_machine(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await asyncio.gather(*(provider.request("a", "n", ANY_POOL) for _ in range(3)))
        await ear.of("a", Granted | Refused)
        await provider.request("a", "n", ANY_POOL)
        assert len(await provider.list()) == bench.grants
        await provider.terminate("a", 0.0)
        await ear.of("a", ENDS)
        await provider.request("a", "n", ANY_POOL)
        assert await provider.list() == ()
        await provider.close()
        await ear.whole()

    play(story)


def test_a_pool_that_there_is_not_is_refused(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await provider.request("a", "n", "no such pool")
        answer = await ear.of("a", Granted | Refused)
        assert isinstance(answer, Refused) and answer.reason
        await provider.close()
        assert await ear.whole() == {"a": [answer]}

    play(story)


def test_the_end_of_nobody_is_no_mistake(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await provider.terminate("nobody", 5.0)
        await provider.request("a", "n", ANY_POOL)
        await provider.terminate("a", 0.0)
        await ear.of("a", ENDS)
        await provider.terminate("a", 0.0)
        await provider.close()
        assert (await ear.whole()).keys() == {"a"}

    play(story)


@pytest.mark.parametrize("grace", [0.0, 0.01])
def test_a_request_under_way_can_be_terminated(bench: Bench, grace: float) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        request = asyncio.create_task(provider.request("a", "n", ANY_POOL))
        ending = asyncio.create_task(provider.terminate("a", grace))
        await ear.of("a", ENDS)
        await asyncio.gather(request, ending)
        assert await provider.list() == ()
        await provider.close()
        await ear.whole()

    play(story)


@pytest.mark.parametrize(
    ("name", "graces"),
    [("polite", (1e6,)), ("stubborn", (0.01,)), ("stubborn", (1e6, 0.01)), ("stubborn", (1e6, 0))],
)
def test_a_grace_is_a_bound(granting: Bench, name: str, graces: tuple[float, ...]) -> None:
    """Who leaves when asked to needs none of it; of several the earliest counts."""

    async def story() -> None:
        provider = granting.open()
        await granting.nonce(provider, name)
        ear = Ear(provider)
        await provider.request(name, "n", ANY_POOL)
        await ear.of(name, Granted)
        await granting.nonce(provider, name)  # from now on it heeds what it is sent
        for grace in graces:
            await provider.terminate(name, grace)
        await ear.of(name, Exited)
        await provider.close()
        await ear.whole()

    play(story)


def test_a_server_echoes_what_it_was_asked_for_with(granting: Bench) -> None:
    async def story() -> None:
        provider = granting.open()
        await granting.nonce(provider, "a")
        ear = Ear(provider)
        await provider.request("a", "some-nonce", ANY_POOL)
        await ear.of("a", Granted)
        assert await granting.nonce(provider, "a") == "some-nonce"
        await provider.close()

    play(story)


def test_a_server_may_end_by_itself(granting: Bench) -> None:
    async def story() -> None:
        provider = granting.open()
        await granting.nonce(provider, "a")
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        await ear.of("a", Granted)
        await granting.nonce(provider, "a")
        await granting.end(provider, "a")
        ended = await ear.of("a", Exited)
        assert isinstance(ended, Exited) and ended.code in (CODE, None) and ended.reason
        assert await provider.list() == ()
        await provider.close()

    play(story)


def test_what_its_owner_takes_back_is_over_and_does_not_come_again(granting: Bench) -> None:
    async def story() -> None:
        provider = granting.open()
        await granting.nonce(provider, "stubborn")
        ear = Ear(provider)
        await provider.request("stubborn", "n", ANY_POOL)
        await ear.of("stubborn", Granted)
        await granting.nonce(provider, "stubborn")
        await granting.take(provider, "stubborn")
        ended = await ear.of("stubborn", Exited)
        assert isinstance(ended, Exited) and ended.reason
        await provider.request("stubborn", "n", ANY_POOL)
        assert await provider.list() == ()
        await provider.request("b", "n-b", ANY_POOL)
        await ear.of("b", Granted)
        await provider.close()
        await ear.whole()

    play(story)


def test_a_start_may_be_late(late: LateBench) -> None:
    async def story() -> None:
        provider = late.open()
        ear = Ear(provider)
        come = late.hold()
        asking = [asyncio.create_task(provider.request("a", "n", ANY_POOL)) for _ in range(2)]
        if late.queues:
            await asyncio.gather(*asking)
        assert await provider.list() == () and not ear.heard
        come()
        await ear.of("a", Started)
        await asyncio.gather(*asking)
        assert await provider.list() == (Listed("a", "n"),)
        await provider.close()
        assert (await ear.whole()).keys() == {"a"}

    play(story)


def test_the_next_manager_finds_what_is_paid_for(granting: Bench) -> None:
    async def story() -> None:
        first = granting.open()
        ear = Ear(first)
        for name in ("a", "b"):
            await first.request(name, f"nonce-{name}", ANY_POOL)
            await ear.of(name, Granted)
        await granting.lose(first)

        second = granting.open()
        listed = await second.list()
        assert sorted(listed, key=lambda each: each.name) == [
            Listed("a", "nonce-a"),
            Listed("b", "nonce-b"),
        ]
        ear = Ear(second)
        await second.request("a", "nonce-a", ANY_POOL)  # is granted already
        await second.request("c", "nonce-c", ANY_POOL)
        await ear.of("c", Granted)
        assert {each.name for each in await second.list()} == {"a", "b", "c"}
        await second.terminate("a", 0.0)
        assert (await ear.of("a", Exited)).nonce == "nonce-a"
        await second.close()
        assert (await ear.of("b", Exited)).nonce == "nonce-b"
        assert not any(isinstance(e, Granted) for e in ear.heard if e.name != "c")

    play(story)


def test_the_end_of_the_run_leaves_nothing(bench: Bench) -> None:
    async def story() -> None:
        provider = bench.open()
        ear = Ear(provider)
        await provider.request("stubborn", "n-1", ANY_POOL)
        under_way = asyncio.create_task(provider.request("b", "n-2", ANY_POOL))
        await asyncio.sleep(0)  # it has been asked for
        await provider.close()
        await under_way
        assert (await ear.whole()).keys() == {"stubborn", "b"}
        await provider.request("late", "n-3", ANY_POOL)
        assert await bench.open().list() == ()

    play(story)


def test_a_start_that_fails_is_refused_with_its_last_line(troubled: TroubledBench) -> None:
    async def story() -> None:
        troubled.refuse()
        provider = troubled.open()
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        refused = await ear.of("a", Refused)
        assert isinstance(refused, Refused)
        assert refused.reason.endswith(troubled.refusal)
        await provider.close()
        assert (await ear.whole()).keys() == {"a"}

    play(story)


def test_who_cannot_be_listed_has_not_ended(troubled: TroubledBench) -> None:
    async def story() -> None:
        provider = troubled.open()
        ear = Ear(provider)
        await provider.request("a", "n", ANY_POOL)
        await ear.of("a", Started)
        blind = troubled.blind
        durable.write(blind, b"the cloud does not answer\n")
        while not provider._problem:
            await asyncio.sleep(0.01)
        assert "the cloud does not answer" in provider._problem
        assert not [event for event in ear.heard if isinstance(event, Exited)]
        blind.unlink()
        await provider.close()
        assert isinstance((await ear.whole())["a"][-1], Exited)

    play(story)


def test_the_next_manager_waits_for_what_does_not_answer(troubled: TroubledBench) -> None:
    async def story() -> None:
        first = troubled.open()
        ear = Ear(first)
        await first.request("a", "n", ANY_POOL)
        await ear.of("a", Started)
        await troubled.lose(first)
        blind = troubled.blind
        durable.write(blind, b"the cloud does not answer\n")
        second = troubled.open()
        asking = asyncio.create_task(second.list())
        while not second._problem:
            await asyncio.sleep(0.01)
        assert not asking.done()
        blind.unlink()
        assert await asking == (Listed("a", "n"),)
        await second.close()

    play(story)
