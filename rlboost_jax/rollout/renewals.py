"""When to renew a lease, and how long answers take on this line.

The first renewals follow each other as soon as they are answered: the manager hears out whose line
it does not know, so a good line is to be known at once.
"""

import asyncio
import contextlib
from collections import deque

from rlboost_jax.settings.limits import FIRST_RENEWALS


class Renewals:
    """Of one stream. Answers come in the order of the questions, `Hello` being the first."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque()
        self._longest = 0.0
        self._answers = 0
        self._answered = asyncio.Event()

    def asked(self, now: float) -> None:
        """A question is ready to leave; what holds it up from now on is the line's."""
        self._asked.append(now)

    def answered(self, now: float) -> None:
        """An answer is here; one that nobody asked for says nothing."""
        if self._asked:
            self._longest = max(self._longest, now - self._asked.popleft())
            self._answers += 1
            self._answered.set()

    def take_longest(self) -> float:
        """Seconds that an answer has taken since this was asked last; 0 where none came."""
        longest, self._longest = self._longest, 0.0
        return longest

    async def next_one(self, seconds: float) -> None:
        """Returns when the next renewal is due.

        Args:
            seconds: between renewals.
        """
        if self._answers > FIRST_RENEWALS:
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._answered.wait()
        self._answered.clear()
