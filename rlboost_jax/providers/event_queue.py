"""Queue of a provider's events."""

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
        """Raise an error in the reader, after the events queued before."""
        self._queue.put_nowait(error)

    def close(self) -> None:
        """End the reader, after the events queued before."""
        self._queue.put_nowait(None)

    async def read(self) -> AsyncIterator[ProviderEvent]:
        while (event := await self._queue.get()) is not None:
            if isinstance(event, BaseException):
                raise event
            yield event
