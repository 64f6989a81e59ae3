"""An event loop whose clock stands still while there is something to do, and then skips the wait.

For stories within one process and one thread: what comes from elsewhere takes no time here.
"""

import asyncio
import selectors
from collections.abc import Awaitable, Callable

from tests.patience import PATIENCE_SECONDS


class Skips(selectors.DefaultSelector):
    """Time passes only where all wait for it, and then at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(timeout and 0.0)


class VirtualTime(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skips = Skips()
        super().__init__(self._skips)

    def time(self) -> float:
        return self._skips.now


def play(story: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            await story()

    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        runner.run(limited())
