"""A provider's events from where they happen to `Provider.events`."""

import asyncio
from collections.abc import AsyncIterator

from rlboost_jax.providers.base import ProviderEvent


class EventQueue:
    """Unbounded, for one reader. To be used in one event loop."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[ProviderEvent | BaseException | None] = asyncio.Queue()

    def put(self, event: ProviderEvent) -> None:
        self._queue.put_nowait(event)

    def fail(self, error: BaseException) -> None:
        """Have the reader meet this mistake behind what was put before."""
        self._queue.put_nowait(error)

    def close(self) -> None:
        """Let the reader come to an end behind what was put before."""
        self._queue.put_nowait(None)

    async def read(self) -> AsyncIterator[ProviderEvent]:
        while (event := await self._queue.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
