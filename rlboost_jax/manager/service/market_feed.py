"""The market and its prices in real time, as the manager's events."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

from rlboost_jax.manager.events import MachineAdded, MachineRemoved, Priced


class MarketChange(Protocol):
    """Interface of `providers.market.MarketEvent`."""

    @property
    def seconds(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def draw(self) -> float: ...


async def market(
    events: Iterator[MarketChange], capacity: int, begun: asyncio.Event
) -> AsyncIterator[MachineAdded | MachineRemoved]:
    """Turn the market into events in real time.

    The initial machines are lent at once; then the market's clock waits for the first step, so that
    no change is spent on an idle fleet.

    Args:
        capacity: machines lent at first.
    """
    for number in range(1, capacity + 1):
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


async def priced(prices: AsyncIterator[tuple[str, float]]) -> AsyncIterator[Priced]:
    """Turn reported prices of pools into events."""
    async for pool, price_per_hour in prices:
        yield Priced(pool, price_per_hour)
