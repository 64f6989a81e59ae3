"""A pool in trouble is in trouble alone."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rlboost_jax.providers.base import (
    Exited,
    Granted,
    Listed,
    Provider,
    ProviderEvent,
    Refused,
)
from rlboost_jax.providers.command import CommandLauncher
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.pooled_provider import PooledProvider
from rlboost_jax.providers.price_command import prices_in
from rlboost_jax.settings.launchers_config import CommandConfig
from tests.providers.benches import made_join, rendezvous
from tests.providers.fake import Cloud, FakeProvider, HangingProvider
from tests.providers.shell_cloud import ShellCloud
from tests.providers.test_contract import Ear
from tests.providers.test_contract import play as play_in_real_time
from tests.virtual_time import play


def pooled(limit: float = 0.05, **pools: Callable[[], Provider]) -> PooledProvider:
    return PooledProvider(
        pools,
        request_seconds=limit,
        list_seconds=limit,
        close_seconds=0.2,
        first_reopen_seconds=0.001,
    )


class Fragile(FakeProvider):
    """Its events end in a mistake once `breaks` is set."""

    def __init__(self, cloud: Cloud, breaks: asyncio.Event) -> None:
        super().__init__(cloud)
        self._breaks = breaks

    async def events(self) -> AsyncIterator[ProviderEvent]:  # type: ignore[override]
        source = super().events()
        while True:
            ahead = asyncio.ensure_future(anext(source))
            broken = asyncio.ensure_future(self._breaks.wait())
            await asyncio.wait((ahead, broken), return_when=asyncio.FIRST_COMPLETED)
            if not ahead.done():
                ahead.cancel()
                self._breaks.clear()
                raise RuntimeError("a mistake")
            broken.cancel()
            yield ahead.result()


def test_one_that_hangs_keeps_nobody_waiting() -> None:
    async def story() -> None:
        provider = pooled(works=lambda: FakeProvider(Cloud()), hangs=HangingProvider)
        assert await provider.list() == ()
        ear = Ear(provider)
        await asyncio.gather(
            provider.request("hangs-1", "a", "hangs"), provider.request("works-2", "b", "works")
        )
        assert isinstance(await ear.of("works-2", Granted | Refused), Granted)
        assert isinstance(await ear.of("hangs-1", Granted | Refused), Refused)
        await provider.close()
        await ear.whole()

    play(story)


def test_the_last_words_of_a_provider_that_has_closed_are_heard() -> None:
    class Slow(FakeProvider):
        async def events(self) -> AsyncIterator[ProviderEvent]:  # type: ignore[override]
            async for event in super().events():
                await asyncio.sleep(0.25)
                yield event

    async def story() -> None:
        provider = pooled(slow=lambda: Slow(Cloud()), hangs=HangingProvider)
        ear = Ear(provider)
        await provider.request("slow-1", "a", "slow")
        await ear.of("slow-1", Granted)
        await provider.close()
        await ear.whole()
        assert ear.heard[-1] == Exited("slow-1", "a", "ended", 0)

    play(story)


def test_a_request_that_was_abandoned_is_ended_when_it_is_granted() -> None:
    async def story() -> None:
        cloud = Cloud(held=asyncio.Event())

        class Stubborn(FakeProvider):
            async def request(self, name: str, nonce: str, pool: str) -> None:
                await asyncio.shield(super().request(name, nonce, pool))

        provider = pooled(slow=lambda: Stubborn(cloud))
        ear = Ear(provider)
        await provider.request("slow-1", "a", "slow")
        assert isinstance(await ear.of("slow-1", Granted | Refused), Refused)
        assert cloud.held is not None
        cloud.held.set()
        while not cloud.nonces or cloud.machines or provider._known:
            await asyncio.sleep(0.001)
        await provider.close()
        assert (await ear.whole()).keys() == {"slow-1"}

    play(story)


def test_a_provider_that_breaks_is_opened_anew_and_its_instances_live_on() -> None:
    async def story() -> None:
        cloud, breaks = Cloud(), asyncio.Event()
        provider = pooled(one=lambda: Fragile(cloud, breaks), other=lambda: FakeProvider(Cloud()))
        ear = Ear(provider)
        for name in ("one-1", "one-2", "other-3"):
            await provider.request(name, f"nonce of {name}", name.rpartition("-")[0])
            await ear.of(name, Granted)
        breaks.set()
        while not provider._pools["one"].trouble:
            await asyncio.sleep(0)
        await provider.request("one-4", "d", "one")
        refused = await ear.of("one-4", Granted | Refused)
        assert isinstance(refused, Refused) and "a mistake" in refused.reason
        await provider.terminate("one-2", 0.0)  # while nobody is there to see to it
        cloud.machines.pop("one-1", None)  # ends unseen
        while provider._pools["one"].trouble:
            await asyncio.sleep(0.001)
        assert isinstance(await ear.of("one-1", Exited), Exited)
        assert isinstance(await ear.of("one-2", Exited), Exited)
        await provider.request("one-5", "e", "one")
        await ear.of("one-5", Granted)
        assert not [e for e in ear.heard if e.name == "other-3" and isinstance(e, Exited)]
        await provider.close()
        await ear.whole()
        assert not cloud.machines

    play(story)


def test_what_is_listed_too_late_is_ended() -> None:
    async def story() -> None:
        cloud, answer = Cloud(), asyncio.Event()
        await FakeProvider(cloud).request("late-1", "a", "any")

        class Late(FakeProvider):
            async def list(self) -> tuple[Listed, ...]:
                await answer.wait()
                return await super().list()

        provider = pooled(late=lambda: Late(cloud), works=lambda: FakeProvider(Cloud()))
        assert await provider.list() == ()
        ear = Ear(provider)
        await provider.request("late-2", "b", "late")
        assert isinstance(await ear.of("late-2", Granted | Refused), Refused)
        answer.set()
        while cloud.machines or provider._pools["late"].trouble:
            await asyncio.sleep(0.001)
        await provider.request("late-3", "c", "late")
        await ear.of("late-3", Granted)
        await provider.close()
        assert (await ear.whole()).keys() == {"late-2", "late-3"}

    play(story)


def test_pools_of_one_cloud_leave_each_others_jobs_alone(tmp_path: Path) -> None:
    """Both list all jobs of the run; what is another's is no stray."""
    made_join(tmp_path)
    cloud = ShellCloud(tmp_path)
    settings = CommandConfig(
        start=f"{cloud.script('start')} {{name}} {{nonce}} {{run}}",
        stop=f"{cloud.script('stop')} {{name}} {{grace}}",
        list=str(cloud.script("list")),
    )

    def opened(pool: str) -> Callable[[], Provider]:
        def opens() -> Provider:
            place = replace(rendezvous(tmp_path), pool=pool, pools=("a", "b"))
            launcher = CommandLauncher(settings, place, price_per_hour=1.0)
            provider = PolledProvider(launcher, "run", poll_seconds=0.05, settle_seconds=0.2)
            provider.keep_to(place.owns)
            return provider

        return opens

    async def story() -> None:
        provider = PooledProvider({"a": opened("a"), "b": opened("b")})
        assert await provider.list() == ()
        ear = Ear(provider)
        for name in ("a-1", "b-2"):
            await provider.request(name, f"nonce-{name}", name[0])
            await ear.of(name, Granted)
        second = PooledProvider({"a": opened("a"), "b": opened("b")})
        listed = await second.list()
        assert sorted(each.name for each in listed) == ["a-1", "b-2"], "each once"
        await provider.terminate("a-1", 0.0)
        await ear.of("a-1", Exited)
        assert [each.name for each in await provider.list()] == ["b-2"]
        await provider.close()
        await ear.whole()

    play_in_real_time(story)


def test_prices() -> None:
    assert prices_in("a 1.5\nb,2\n\n# c 3\na 1.25\n") == {"a": 1.25, "b": 2.0}
    for json in ('{"a": 1.5, "b": 2}', '\ufeff{"a": 1.5, "b": 2}'):
        assert prices_in(json) == {"a": 1.5, "b": 2.0}
    assert prices_in("\ufeffa 1") == {"a": 1.0}


@pytest.mark.parametrize(
    "wrong",
    [
        *("a", "a b", "a -1", "a nan", "a 1 2", "a inf", "a 1e9"),
        *('{"a": "x"}', '{"a": NaN}', '{"a": null}', '{"a": true}', '{"a": [1]}', '{"a"', "[1]"),
        f'{{"a": {"9" * 400}}}',
        f'{{"a": {"9" * 5000}}}',
        '{"a": ' * 100_000,
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_price_leaves_prices_as_they_are(wrong: str) -> None:
    with pytest.raises(ValueError):
        prices_in(wrong)
