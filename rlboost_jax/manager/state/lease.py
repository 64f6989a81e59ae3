"""When a server was last heard, and when it last heard us."""

import math


class Lease:
    """
    Attributes:
        heard_at: when its last frame came in.
        hears_at: the newest of our stamps that it echoed; inf: none.
    """

    __slots__ = ("heard_at", "hears_at")

    def __init__(self, now: float) -> None:
        self.heard_at = now
        self.hears_at = math.inf

    def heard(self, now: float) -> None:
        """A frame of it came in."""
        self.heard_at = now

    def echoed(self, stamp: float, now: float) -> None:
        """It has heard an answer that was given at `stamp`. What cannot be one is passed over."""
        if 0 < stamp <= now:
            known = self.hears_at if self.hears_at < math.inf else stamp
            self.hears_at = max(known, stamp)

    def forgive(self, seconds: float, now: float) -> None:
        """Nobody could be heard for so long, by our own fault."""
        self.heard_at = min(now, self.heard_at + seconds)
        if self.hears_at < math.inf:
            self.hears_at = min(now, self.hears_at + seconds)
