"""Departure of a server: by its own notice, by the manager's, or for want of work."""

import math


class Departure:
    """Whether, when and why a server leaves.

    Attributes:
        leaving: it gets no more work.
        goes_at: when its machine goes, by its own notice; inf: it gave none.
        draining: what waited there was released.
        leave_by: until when it may stay after it was asked to leave; inf: it was not.
        dismissed: sent away for want of work.
        reason: what it is sent.
    """

    __slots__ = ("_remarks", "dismissed", "draining", "goes_at", "leave_by", "leaving", "reason")

    def __init__(self) -> None:
        self.leaving = False
        self.goes_at = math.inf
        self.draining = False
        self.leave_by = math.inf
        self.dismissed = False
        self.reason = ""
        self._remarks = 0

    def begin(self) -> None:
        """Stop giving the server work."""
        self.leaving = True

    def announced(self, goes_at: float, reason: str) -> None:
        """Record a notice: the machine goes at that time."""
        self.goes_at, self.reason = goes_at, reason

    def dismiss(self, goes_at: float, reason: str) -> None:
        """Have the server leave by that time, for want of work."""
        self.dismissed = True
        self.announced(goes_at, reason)

    def drain(self) -> None:
        """Note that the rollouts waiting there are being released."""
        self.draining = True

    def asked_to_leave(self, leave_by: float) -> None:
        """Note that the server was asked to leave."""
        self.leave_by = leave_by

    def remark(self, most: int) -> bool:
        """Whether a remark on its leaving is still recorded: at most `most` per stream."""
        if self._remarks >= most:
            return False
        self._remarks += 1
        return True

    def forgive(self, seconds: float) -> None:
        """Extend the time to leave; the time its machine goes is unchanged."""
        self.leave_by += seconds
