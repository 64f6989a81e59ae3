"""How a server leaves: by its own notice, by ours, or for want of work."""

import math


class Departure:
    """
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
        """No more work for it."""
        self.leaving = True

    def announced(self, goes_at: float, reason: str) -> None:
        """Its machine goes then."""
        self.goes_at, self.reason = goes_at, reason

    def dismiss(self, goes_at: float, reason: str) -> None:
        """It is to be gone then, for want of work."""
        self.dismissed = True
        self.announced(goes_at, reason)

    def drain(self) -> None:
        """What waits there is being released."""
        self.draining = True

    def asked_to_leave(self, leave_by: float) -> None:
        """It was asked to leave."""
        self.leave_by = leave_by

    def remark(self, most: int) -> bool:
        """Whether what it says of its leaving is still to be recorded: of one stream, `most`."""
        if self._remarks >= most:
            return False
        self._remarks += 1
        return True

    def forgive(self, seconds: float) -> None:
        """It may stay for longer. Its machine goes when it goes, though."""
        self.leave_by += seconds
