"""Rollouts that one server holds, and those among them it is to release."""

import itertools
import math
from collections.abc import Iterable

from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout


class HeldRollouts:
    """Rollouts that a server holds.

    Attributes:
        rollouts: by request id, oldest placement first.
        groups: rollouts held, per group.
        num_releasing: of the rollouts, those that are being released.
    """

    __slots__ = ("groups", "num_releasing", "rollouts")

    def __init__(self) -> None:
        self.rollouts: dict[int, Rollout] = {}
        self.groups: dict[int, int] = {}
        self.num_releasing = 0

    @property
    def asked_at(self) -> float:
        """Since when an answer to a release is overdue; inf: none is."""
        if not self.num_releasing:
            return math.inf
        return min(rollout.placement.asked_at for rollout in self.rollouts.values())

    def hold(self, rollout: Rollout) -> None:
        """Add a rollout that was placed here."""
        self.rollouts[rollout.placement.request_id] = rollout
        self.groups[rollout.group] = self.groups.get(rollout.group, 0) + 1

    def release(self, rollouts: Iterable[Rollout], now: float) -> None:
        """Mark rollouts as being released; none of them was before."""
        for rollout in rollouts:
            rollout.placement.release(now)
            self.num_releasing += 1

    def let_go(self, request_id: int) -> Rollout | None:
        """Remove a rollout, whatever the reason; None if it was not held."""
        rollout = self.rollouts.pop(request_id, None)
        if rollout is None:
            return None
        self.num_releasing -= rollout.placement.releasing
        if left := self.groups[rollout.group] - 1:
            self.groups[rollout.group] = left
        else:
            del self.groups[rollout.group]
        rollout.placement.end()
        return rollout

    def newest_pending(self, count: int, batch: BatchRecord | None = None) -> list[Rollout]:
        """The last placed rollouts without a token here, at most `count`.

        Args:
            batch: only of this batch; None: of any.
        """
        staying = (r for r in reversed(self.rollouts.values()) if r.placement.pending)
        own = (r for r in staying if batch is None or r.batch is batch)
        newest = itertools.islice(own, max(0, count))
        return sorted(newest, key=lambda r: r.placement.request_id)

    def pending_of_others(self, batch: BatchRecord) -> int:
        """Number of other batches' rollouts that stay and have no token here."""
        staying = (r for r in self.rollouts.values() if r.placement.pending)
        return sum(r.batch is not batch for r in staying)

    def shortest(self, batch: BatchRecord, count: int) -> list[Rollout]:
        """The `count` shortest rollouts of a batch among those that stay."""
        held = [r for r in self.rollouts.values() if r.batch is batch and not r.placement.releasing]
        return sorted(held, key=lambda r: (r.transcript.length, r.sample))[:count]

    def forgive(self, seconds: float, now: float) -> None:
        """Move timestamps forward by a time in which this manager could hear nobody."""
        for rollout in self.rollouts.values():
            if rollout.placement.releasing:
                rollout.placement.release(min(now, rollout.placement.asked_at + seconds))
