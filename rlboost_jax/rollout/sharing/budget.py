"""What a server may use of its device, as others on it order. Decisions only.

- A smaller budget counts at once.
- Having shrunk, a server grows with the next step of the run and not before: who took memory in
  the middle of a step is not asked for it again in the middle of the same one, and rollouts do not
  move to and fro. Without a step for `FREEZE_SECONDS` it grows all the same: a run that waits for
  this very server has no next step.
- Of several tenants each takes its part: what the smallest order leaves is left.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

FREEZE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """A part of a device."""

    slots: int
    pool_bytes: int  # of pages

    def meet(self, other: "Share") -> "Share":
        """What both allow."""
        return Share(
            slots=min(self.slots, other.slots), pool_bytes=min(self.pool_bytes, other.pool_bytes)
        )

    def within(self, other: "Share") -> bool:
        return self.meet(other) == self


@dataclass(frozen=True, kw_only=True)
class Budget:
    """
    Attributes:
        granted: that the server goes by.
        wanted: that it is to have once it may grow; never less.
        frozen_at: when it shrank last in this step, in seconds; None: it may grow.
    """

    granted: Share
    wanted: Share
    frozen_at: float | None = None

    @property
    def frozen(self) -> bool:
        return self.frozen_at is not None

    @property
    def thaws_at(self) -> float:
        """When it grows without a step; inf: nothing to grow to."""
        if self.frozen_at is None or self.granted == self.wanted:
            return math.inf
        return self.frozen_at + FREEZE_SECONDS


def whole(share: Share) -> Budget:
    """All is this server's."""
    return Budget(granted=share, wanted=share)


def allowed(most: Share, orders: Iterable[Share]) -> Share:
    """What is left by all who have ordered anything."""
    for order in orders:
        most = most.meet(order)
    return most


def ordered(budget: Budget, wanted: Share, now: float) -> Budget:
    """It is to have so much from now on."""
    left = budget.granted.meet(wanted)
    if left != budget.granted:
        return Budget(granted=left, wanted=wanted, frozen_at=now)
    if budget.frozen:
        return replace(budget, wanted=wanted)
    return whole(wanted)


def stepped(budget: Budget) -> Budget:
    """A step of the run has begun."""
    return whole(budget.wanted)


def passed(budget: Budget, now: float) -> Budget:
    """Time has."""
    return stepped(budget) if now >= budget.thaws_at else budget
