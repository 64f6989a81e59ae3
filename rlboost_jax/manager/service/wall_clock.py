"""Dates of events: the wall clock at the start of the process, then the steady clock.

A wall clock may be set while a run goes on, by years even. Between two events of a manager there
is what passed between them all the same: reports and calibration count on it.
"""

import time
from collections.abc import Callable


class WallClock:
    """Clock for dates, which never goes backwards.

    Args:
        steady: seconds on a clock that nobody sets.
        wall: seconds since the epoch.
    """

    def __init__(
        self,
        steady: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._steady, self._ahead = steady, wall() - steady()

    def now(self) -> float:
        """Seconds since the epoch."""
        return self._steady() + self._ahead
