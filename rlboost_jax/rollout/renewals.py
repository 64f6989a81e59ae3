"""When to renew a lease, and how long answers take on this line.

The first renewals follow each other as soon as they are answered: the manager hears out whose line
it does not know, so a good line is to be known at once.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from rlboost_jax.host.busy import busy_seconds
from rlboost_jax.settings.limits import FIRST_RENEWALS

QUICKEST: Final = 1e-5  # seconds; 0 is no answer
RECENT: Final = 64  # answers: the quickest of them is what the way takes at least
FEW: Final = 8  # answers: fewer than these may all have been late by the hosts
LATE_SECONDS: Final = 0.2  # beyond the quickest: no packet that was sent again comes sooner


class Renewals:
    """Of one stream. Answers come in the order of the questions.

    While this thread, or the manager's, had other things to do or waited for a processor, nobody
    looked at what had come: that is not the line's. Most of it passed while frames were on their
    way, though, so no answer counts as quicker than the quickest one lately was by the clock, and
    one that a loss or the hosts may have held up says nothing.

    Args:
        busy: seconds that this thread has run or waited for a processor.
    """

    def __init__(self, busy: Callable[[], float] = busy_seconds) -> None:
        self._busy = busy
        self._asked: deque[tuple[float, float]] = deque()  # when, and how busy we were
        self._manager_busy = math.inf  # seconds, as it said last
        self._longest = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)  # seconds by the clock
        self._answers = 0
        self._begun = False
        self._answered = asyncio.Event()

    def asked(self, now: float) -> None:
        """A question is ready to leave; what holds it up from now on is the line's."""
        self._asked.append((now, self._busy()))

    def answered(self, now: float, busy: float = 0.0) -> None:
        """An answer is here; one that nobody asked for says nothing.

        Args:
            busy: seconds that the manager has run or waited for a processor so far.
        """
        if not self._asked:
            return
        asked, ours = self._asked.popleft()
        hosts = self._busy() - ours + max(0.0, busy - self._manager_busy)
        self._manager_busy = busy
        self._recent.append(now - asked)
        least = min(self._recent) if len(self._recent) >= FEW else QUICKEST
        taken = max(now - asked - hosts, least, QUICKEST)
        late = now - asked - least >= LATE_SECONDS
        excused = late and taken - least < LATE_SECONDS
        if not excused or len(self._recent) < FEW:
            self._longest = max(self._longest, taken)
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
        if self._begun and self._answers < FIRST_RENEWALS:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._answered.wait()
            self._answered.clear()
        elif self._begun:
            await asyncio.sleep(seconds)
        self._begun = True
