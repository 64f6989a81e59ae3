"""Leases while the manager itself stands still."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.events import Event, FromServer, Tick
from rlboost_jax.manager.service.manager_driver import PULSE_SECONDS
from tests.manager.conftest import Loopback, Open, join, open_trainer
from tests.manager.fakes import begin_batch, ready

Run = Callable[..., Any]


class Clock:
    """Time passes for a driver when a test says so, with or without its having run."""

    def __init__(self, loop: Loopback) -> None:
        self._driver, self._ahead = loop.driver, 0.0
        begun = loop.driver.now()
        loop.driver.now = lambda: begun + self._ahead  # type: ignore[method-assign]

    def stall(self, seconds: float) -> None:
        self._ahead += seconds

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / PULSE_SECONDS)):
            self._ahead += PULSE_SECONDS
            self._driver._tick()


def names(loop: Loopback) -> list[str]:
    return [i.name for i in loop.driver.manager.view.roster]


@pytest.mark.parametrize("first", [Tick(), FromServer(2, m.Renew())], ids=["timer", "frame"])
@pytest.mark.parametrize("trainer", [False, True])
def test_nobody_is_lost_to_a_stall_of_the_manager(
    loopback: Open, run: Run, first: Event, trainer: bool
) -> None:
    """Whatever is heard first after it: frames of the others may lie in their sockets."""

    async def story() -> None:
        async with loopback(manager__lease_seconds=100.0, fleet__orphan_seconds=1e6) as loop:
            clock = Clock(loop)
            a, b = await join(loop, instance="a"), await join(loop, instance="b")
            link = await open_trainer(loop)
            if not trainer:
                await link.close()
            clock.run(100.0 - PULSE_SECONDS)  # their leases end with the next
            clock.stall(150.0)
            loop.driver.apply(first)
            assert names(loop) == ["a", "b"]
            for stream in (a, b, link):
                await stream.close()

    run(story())


def test_silence_counts_while_the_manager_runs(loopback: Open, run: Run) -> None:
    async def story() -> None:
        async with loopback(manager__lease_seconds=100.0, fleet__orphan_seconds=1e6) as loop:
            clock = Clock(loop)
            trainer, server = await open_trainer(loop), await join(loop, instance="a")
            clock.run(60.0)
            clock.stall(1000.0)
            clock.run(39.0)
            assert names(loop) == ["a"]
            clock.run(2.0)
            assert not names(loop)
            await trainer.close()
            await server.close()

    run(story())


def test_nobody_owes_progress_with_work_that_the_disk_keeps_back(loopback: Open, run: Run) -> None:
    """It was placed, and nobody has heard of it. Once the disk answers, patience begins."""

    async def story() -> None:
        disk = Disk()
        async with loopback(
            keep=disk.keep, manager__lease_seconds=1e6, manager__progress_seconds=10.0
        ) as loop:
            clock = Clock(loop)
            trainer, server = await open_trainer(loop), await join(loop, reserved=True)
            await server.send_bytes(m.encode(ready(0)))
            disk.stands = True
            await trainer.send_bytes(m.encode(begin_batch(0, 0, "d", prompts=1)))
            (instance,) = loop.driver.manager.view.roster
            for _ in range(1000):
                await asyncio.sleep(0.01)
                if instance.held:
                    break
            lost = []
            clock.run(60.0)
            lost.append(names(loop))
            disk.answer()
            clock.run(9.0)
            lost.append(names(loop))
            clock.run(2.0)
            lost.append(names(loop))
            await trainer.close()
            await server.close()
        assert lost == [["server-1"], ["server-1"], []]

    run(story())


class Disk:
    """Entries are kept at once, or as it answers."""

    def __init__(self) -> None:
        self.stands = False
        self._kept: list[Callable[[str], None]] = []

    def keep(self, entries: object, done: Callable[[str], None]) -> None:
        if self.stands:
            self._kept.append(done)
        else:
            done("")

    def answer(self) -> None:
        self.stands = False
        while self._kept:
            self._kept.pop(0)("")
