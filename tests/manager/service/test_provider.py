"""The driver and a provider: requests, terminations, the end, mistakes in a task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rlboost_jax.manager.events import MachineAdded, MachineRemoved, Shutdown
from rlboost_jax.manager.reducer.provisioning import GRACE_SECONDS
from tests.manager.conftest import Open
from tests.providers.fake import Cloud, FakeProvider, Machine

Run = Callable[..., Any]


def test_the_provider_is_called_and_closed(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            provider = FakeProvider(Cloud(refusals=1))
            await loop.driver.employ(provider)
            loop.driver.apply(MachineAdded("m1"))
            assert await provider.calls.get() == "request local-1"
            assert await provider.calls.get() == "request local-2"  # after the pause
            loop.driver.apply(MachineRemoved("m1", notice=False))
            assert await provider.calls.get() == "terminate local-2 in 0 s"
            loop.driver.apply(Shutdown("SIGTERM"))
            assert (await loop.driver.finished).reason == "SIGTERM"
        assert provider.closed
        (lost, *_) = [r for r in loop.records if r.kind == "lost"]
        assert "refused: nothing in 'any'" in lost.detail["reason"]

    run(story())


def test_what_is_asked_for_can_be_terminated_at_once(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            provider = FakeProvider(Cloud(held=asyncio.Event()))
            await loop.driver.employ(provider)
            loop.driver.apply(MachineAdded("m1"))
            loop.driver.apply(MachineRemoved("m1", notice=True))
            assert await provider.calls.get() == "request local-1"
            assert await provider.calls.get() == f"terminate local-1 in {GRACE_SECONDS:g} s"

    run(story())


def test_the_end_of_the_run_leaves_a_request_to_the_provider(loopback: Open, run: Run) -> None:
    """A machine may be there already: only the provider can end it."""

    async def story() -> None:
        async with loopback() as loop:
            provider = FakeProvider(Cloud(held=asyncio.Event()))
            await loop.driver.employ(provider)
            loop.driver.apply(MachineAdded("m1"))
            assert await provider.calls.get() == "request local-1"
            loop.driver.apply(Shutdown("SIGTERM"))
            await loop.driver.finished
            assert not provider.cloud.held.is_set()  # type: ignore[union-attr]
        assert provider.closed and not provider.cloud.machines
        assert not provider._asking, "it went on to its end"

    run(story())


@pytest.mark.parametrize("found_us", [True, False])
def test_what_an_earlier_manager_left_is_adopted(loopback: Open, run: Run, found_us: bool) -> None:
    """It stands on the first machine lent; where it cannot find this manager it is ended."""

    async def story() -> None:
        async with loopback() as loop:
            provider = FakeProvider(Cloud(machines={"local-4": Machine("of-before", leaves=True)}))
            await loop.driver.employ(provider, found_us=found_us)
            fleet = loop.driver.manager.view.fleet
            assert fleet.servers["local-4"].nonce == "of-before" and len(fleet.starting) == 1
            loop.driver.apply(MachineAdded("m1"))
            if not found_us:
                assert await provider.calls.get() == "terminate local-4 in 0 s"
                assert await provider.calls.get() == "request local-5"
                return
            loop.driver.apply(MachineAdded("m2"))
            assert await provider.calls.get() == "request local-5"
            assert fleet.machines == {"m1": "local-4", "m2": "local-5"}

    run(story())


def test_a_mistake_in_a_task_ends_the_process(loopback: Open, run: Run) -> None:
    async def market() -> AsyncIterator[MachineAdded]:
        yield MachineAdded("m1")
        raise ZeroDivisionError

    class Broken(FakeProvider):
        async def terminate(self, name: str, grace_seconds: float) -> None:
            raise ZeroDivisionError

    async def story() -> None:
        async with loopback() as loop:
            await loop.driver.employ(FakeProvider(Cloud()))
            loop.driver.follow(market())
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished
        async with loopback() as loop:
            await loop.driver.employ(Broken(Cloud()))
            loop.driver.apply(MachineAdded("m1"))
            loop.driver.apply(MachineRemoved("m1", notice=True))
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished
        async with loopback() as loop:
            provider = FakeProvider(Cloud())
            await loop.driver.employ(provider)
            provider._events.fail(ZeroDivisionError())
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished

    run(story())
