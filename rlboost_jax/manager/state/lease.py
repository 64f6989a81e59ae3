"""Last contact with a server in both directions, and measurements of the connection."""

import math
from collections import deque

from rlboost_jax.manager.policies.connection_quality import ConnectionQuality

REMEMBERED_STALLS = 8
NEWS = 2.0  # times as long, or as short


class Lease:
    """Lease of a server, and the times of its frames.

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
        self.line = ConnectionQuality()
        self._said = 0.0
        self._began = now  # what was said before lay here unread
        self._stalled_at = -math.inf  # when we last had stood still
        # When we had stood still, and how long: those since its last echo.
        self._stalls: deque[tuple[float, float]] = deque(maxlen=REMEMBERED_STALLS)

    def heard(self, now: float) -> None:
        """Record that a frame of the server came in."""
        self.heard_at = now

    def echoed(self, stamp: float, now: float) -> None:
        """Record that the server received an answer sent at `stamp`. Impossible stamps are ignored.

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
        """Record a round trip, in seconds by the server's clock; 0: nothing new.

        What we stood still for is no fault of the line. It says so with its next renewal, which is
        on its way for no longer than there and back.

        Args:
            renew: seconds between renewals.
        """
        ago = renew + 2 * round_trip  # that it asked, at most
        if 0 < round_trip < now - self._began and ago < now - self._stalled_at:
            self.line.took(round_trip)

    def tell(self, lease: float, usual: float) -> bool:
        """Whether a lease has changed enough to be reported; if so it counts as reported.

        The factor is two, either way, from the last report or, without one, from the usual lease.
        """
        before = self._said or usual
        if not self.line.known or before / NEWS < lease < before * NEWS:
            return False
        self._said = lease
        return True

    def forgive(self, seconds: float, now: float) -> None:
        """Move timestamps forward by a time in which this manager could hear nobody."""
        self.heard_at = min(now, self.heard_at + seconds)
        if self.hears_at < math.inf:
            self.hears_at = min(now, self.hears_at + seconds)
        self._stalled_at = now
        self._stalls.append((now, seconds))
