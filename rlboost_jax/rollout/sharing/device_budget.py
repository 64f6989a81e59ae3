"""Budget of a server on its device, as other tenants order it. Decisions only.

- A smaller budget counts at once.
- Having shrunk, a server grows with the next step of the run and not before: a tenant that took
  memory in the middle of a step keeps it for the rest of that step, and rollouts do not move to and
  fro. Without a step for `FREEZE_SECONDS` it grows all the same: a run that waits for
  this very server has no next step.
- Of several tenants each takes its part: what the smallest order leaves is left.
- What another run has (`lent`) comes back at once when that run is done with it.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

FREEZE_SECONDS: Final = 60.0


@dataclass(frozen=True, kw_only=True)
class DeviceShare:
    """A part of a device."""

    slots: int
    pool_bytes: int  # of pages

    def meet(self, other: "DeviceShare") -> "DeviceShare":
        """The smaller of both limits in each part."""
        return DeviceShare(
            slots=min(self.slots, other.slots), pool_bytes=min(self.pool_bytes, other.pool_bytes)
        )

    def within(self, other: "DeviceShare") -> bool:
        return self.meet(other) == self


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Slots and memory that a server may use, now and later.

    Attributes:
        granted: that the server goes by.
        wanted: that it is to have once it may grow; never less.
        frozen_at: when it shrank last in this step, in seconds; None: it may grow.
        lent: the device is a neighbour's: a server's of another run.
    """

    granted: DeviceShare
    wanted: DeviceShare
    frozen_at: float | None = None
    lent: bool = False

    @property
    def in_use(self) -> DeviceShare:
        """Share that the server has now."""
        return DeviceShare(slots=0, pool_bytes=0) if self.lent else self.granted

    @property
    def frozen(self) -> bool:
        return self.frozen_at is not None

    @property
    def thaws_at(self) -> float:
        """When the server grows without a step; inf: there is nothing to grow to."""
        if self.frozen_at is None or self.granted == self.wanted:
            return math.inf
        return self.frozen_at + FREEZE_SECONDS


def whole(share: DeviceShare) -> Budget:
    """Budget that gives the server the whole share."""
    return Budget(granted=share, wanted=share)


def allowed(most: DeviceShare, orders: Iterable[DeviceShare]) -> DeviceShare:
    """Share that all orders leave to the server."""
    for order in orders:
        most = most.meet(order)
    return most


def ordered(budget: Budget, wanted: DeviceShare, now: float) -> Budget:
    """Budget after an order that leaves the server `wanted`."""
    left = budget.granted.meet(wanted)
    if left != budget.granted:
        return replace(budget, granted=left, wanted=wanted, frozen_at=now)
    if budget.frozen:
        return replace(budget, wanted=wanted)
    return replace(budget, granted=wanted, wanted=wanted)


def stepped(budget: Budget) -> Budget:
    """Budget after the begin of a step."""
    return replace(budget, granted=budget.wanted, frozen_at=None)


def passed(budget: Budget, now: float) -> Budget:
    """Budget after time has passed."""
    return stepped(budget) if now >= budget.thaws_at else budget
