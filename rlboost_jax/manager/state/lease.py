"""When a server was last heard, when it last heard us, and what is known of the line to it."""

import math
from collections import deque

from rlboost_jax.manager.policies.lines import Line

REMEMBERED_STALLS = 8
NEWS = 2.0  # times as long, or as short


class Lease:
    """
    Attributes:
        heard_at: when its last frame came in.
        hears_at: the newest of our stamps that it echoed; inf: none.
        echo_age: seconds since that one as it last said.
        line: between it and us.
    """

    __slots__ = (
        "_began",
        "_said",
        "_stalled_at",
        "_stalls",
        "echo_age",
        "heard_at",
        "hears_at",
        "line",
    )

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.hears_at = math.inf
        self.echo_age = 0.0
        self.line = Line()
        self._said = 0.0
        self._began = now  # what was said before lay here unread
        self._stalled_at = -math.inf  # when we last had stood still
        # When we had stood still, and how long: those since its last echo.
        self._stalls: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_STALLS)

    def heard(self, now: float) -> None:
        """A frame of it came in."""
        self.heard_at = now

    def echoed(self, stamp: float, now: float) -> None:
        """It has heard an answer that was given at `stamp`. What cannot be one is passed over.

        No answer was given while we stood still, so an older one is younger by that.
        """
        if 0 < stamp <= now:
            while self._stalls and self._stalls[0][0] <= stamp:
                self._stalls.popleft()
            stamp = min(now, stamp + sum(seconds for _, seconds in self._stalls))
            known = self.hears_at if self.hears_at < math.inf else stamp
            self.hears_at = max(known, stamp)
            self.echo_age = now - self.hears_at

    def measured(self, round_trip: float, now: float, renew: float) -> None:
        """It was answered after so many seconds by its own clock, it says; 0: it has no news.

        What we stood still for is no fault of the line. It says so with its next renewal, which is
        on its way for no longer than there and back.

        Args:
            renew: seconds between renewals.
        """
        ago = renew + 2 * round_trip  # that it asked, at most
        if 0 < round_trip < now - self._began and ago < now - self._stalled_at:
            self.line.took(round_trip)

    def tell(self, lease: float, usual: float) -> bool:
        """Whether a lease of so many seconds is news: twice what was said before, or half of it,
        or, where nothing was, of what is usual. Then it is said."""
        before = self._said or usual
        if not self.line.known or before / NEWS < lease < before * NEWS:
            return False
        self._said = lease
        return True

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody could be heard for so long, by our own fault."""
        self.heard_at = min(now, self.heard_at + seconds)
        if self.hears_at < math.inf:
            self.hears_at = min(now, self.hears_at + seconds)
        self._stalled_at = now
        self._stalls.append((now, seconds))
