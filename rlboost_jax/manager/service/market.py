"""The market and its prices in real time, as the manager's events."""

import asyncio
from collections.abc import AsyncIterator, Iterator

from rlboost_jax.manager.events import MachineAdded, MachineRemoved, Priced
from rlboost_jax.providers.market import MarketEvent, initial_capacity
from rlboost_jax.providers.prices import prices
from rlboost_jax.settings.fleet import FleetConfig


async def market(
    events: Iterator[MarketEvent], settings: FleetConfig, begun: asyncio.Event
) -> AsyncIterator[MachineAdded | MachineRemoved]:
    """The market in real time. What it lends at first is there at once; then its clock
    waits for the first step, so that no chaos is spent on an idle fleet."""
    for number in range(1, initial_capacity(settings) + 1):
        yield MachineAdded(f"machine-{number}")
    loop = asyncio.get_running_loop()
    opened: float | None = None
    for event in events:
        if event.seconds > 0:
            await begun.wait()
            opened = opened or loop.time()
            await asyncio.sleep(max(0.0, opened + event.seconds - loop.time()))
        if event.kind == "add":
            yield MachineAdded(event.name)
        else:
            yield MachineRemoved(event.name, event.kind == "terminate", event.draw)


async def priced(settings: FleetConfig) -> AsyncIterator[Priced]:
    """What instances of the pools cost, whenever it is said."""
    async for pool, price_per_hour in prices(settings):
        yield Priced(pool, price_per_hour)
