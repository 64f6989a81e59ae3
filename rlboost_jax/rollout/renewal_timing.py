"""Schedule of lease renewals, and measurement of how long their answers take.

The first renewals follow each other as soon as they are answered: the manager is most patient with
a connection it has not measured, so a good one should be measured at once.
"""

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from rlboost_jax.platform.busy import busy_seconds
from rlboost_jax.sequences.shared_limits import FIRST_RENEWALS

QUICKEST: Final = 1e-5  # seconds; 0 is no answer
RECENT: Final = 64  # answers: the quickest of them is what the way takes at least
FEW: Final = 8  # answers: fewer than these may all have been late by the hosts
LATE_SECONDS: Final = 0.2  # beyond the quickest: no packet that was sent again comes sooner


class RenewalTiming:
    """Renewals of one stream. Answers come in the order of the requests.

    Time in which this thread, or the manager's, had other work or waited for a processor is not
    the connection's. Most of it passed while frames were in transit, though, so no answer counts as
    quicker than the quickest one lately was by the clock, and one that a loss or the hosts may have
    delayed is not counted.

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
        """Record that a renewal is about to be sent; from now on delays are the connection's."""
        self._asked.append((now, self._busy()))

    def answered(self, now: float, busy: float = 0.0) -> None:
        """Record an answer; one without a request is ignored.

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
        """Longest time to an answer, in seconds, since the last call; 0 if none came."""
        longest, self._longest = self._longest, 0.0
        return longest

    async def next_one(self, seconds: float) -> None:
        """Wait until the next renewal is due.

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
