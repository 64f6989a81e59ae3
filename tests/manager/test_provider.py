"""The driver and what starts servers: starts, signals, the end, mistakes in a task."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from rlboost_jax.manager.events import MachineAdded, MachineRemoved, Shutdown
from tests.manager.conftest import Open

Run = Callable[..., Any]


class FakeProvider:
    """Says what it was asked for; the first start fails."""

    def __init__(self) -> None:
        self.calls: asyncio.Queue[str] = asyncio.Queue()
        self.failures = 1
        self.closed = False

    async def start(self, instance: str) -> int:
        self.calls.put_nowait(f"start {instance}")
        if self.failures:
            self.failures -= 1
            raise RuntimeError("no fork today")
        return 1

    async def signal(self, target: str, number: object) -> bool:
        self.calls.put_nowait(f"{getattr(number, 'name', number)} {target}")
        return True

    async def close(self) -> None:
        self.closed = True


def test_the_provider_starts_signals_and_closes(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = provider = FakeProvider()
            loop.driver.apply(MachineAdded("m1"))
            assert await provider.calls.get() == "start local-1"
            assert await provider.calls.get() == "start local-2"  # after the pause
            loop.driver.apply(MachineRemoved("m1", notice=False))
            assert await provider.calls.get() == "SIGKILL local-2"
            loop.driver.apply(Shutdown("SIGTERM"))
            assert (await loop.driver.finished).reason == "SIGTERM"
        assert provider.closed
        (lost,) = [r for r in loop.records if r.kind == "lost"]
        assert "no fork today" in lost.detail["reason"]

    run(story())


def test_a_server_is_signalled_once_it_has_started(loopback: Open, run: Run) -> None:
    class Slow(FakeProvider):
        async def start(self, instance: str) -> int:
            await released.wait()
            return await super().start(instance)

    released = asyncio.Event()

    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = provider = Slow()
            provider.failures = 0
            loop.driver.apply(MachineAdded("m1"))
            loop.driver.apply(MachineRemoved("m1", notice=True))
            released.set()
            assert await provider.calls.get() == "start local-1"
            assert await provider.calls.get() == "SIGTERM local-1"

    run(story())


def test_the_end_of_the_run_leaves_a_start_to_the_provider(loopback: Open, run: Run) -> None:
    """Its process may exist already: only the provider can end it."""

    class Forking(FakeProvider):
        async def start(self, instance: str) -> int:
            self.calls.put_nowait("forked")
            await forked.wait()
            self.calls.put_nowait("known")
            return 1

        async def close(self) -> None:
            forked.set()
            assert await self.calls.get() == "known"
            await super().close()

    forked = asyncio.Event()

    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = provider = Forking()
            loop.driver.apply(MachineAdded("m1"))
            assert await provider.calls.get() == "forked"
            loop.driver.apply(Shutdown("SIGTERM"))
            await loop.driver.finished
        assert provider.closed

    run(story())


def test_a_mistake_in_a_task_ends_the_process(loopback: Open, run: Run) -> None:
    async def market() -> AsyncIterator[MachineAdded]:
        yield MachineAdded("m1")
        raise ZeroDivisionError

    class Broken(FakeProvider):
        async def signal(self, target: str, number: object) -> bool:
            raise ZeroDivisionError

    async def story() -> None:
        async with loopback() as loop:
            loop.driver.provider = FakeProvider()
            loop.driver.follow(market())
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished
        async with loopback() as loop:
            loop.driver.provider = Broken()
            loop.driver.apply(MachineAdded("m1"))
            loop.driver.apply(MachineRemoved("m1", notice=True))
            with pytest.raises(ZeroDivisionError):
                await loop.driver.finished

    run(story())
