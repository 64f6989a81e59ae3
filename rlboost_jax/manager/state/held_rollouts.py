"""The rollouts that one server holds, and which of them it is to release."""

import itertools
import math
from collections.abc import Iterable

from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout


class HeldRollouts:
    """
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
        """Since when an answer to a release is owed; inf: none is."""
        if not self.num_releasing:
            return math.inf
        return min(rollout.asked_at for rollout in self.rollouts.values())

    def hold(self, rollout: Rollout) -> None:
        """One more, that was placed here."""
        self.rollouts[rollout.request_id] = rollout
        self.groups[rollout.group] = self.groups.get(rollout.group, 0) + 1

    def release(self, rollouts: Iterable[Rollout], now: float) -> None:
        """These are released from now on; none of them was before."""
        for rollout in rollouts:
            rollout.release(now)
            self.num_releasing += 1

    def let_go(self, request_id: int) -> Rollout | None:
        """Held no longer, whatever the reason; None if it never was."""
        rollout = self.rollouts.pop(request_id, None)
        if rollout is None:
            return None
        self.num_releasing -= rollout.releasing
        if left := self.groups[rollout.group] - 1:
            self.groups[rollout.group] = left
        else:
            del self.groups[rollout.group]
        rollout.take_back()
        return rollout

    def newest_pending(self, count: int, batch: BatchRecord | None = None) -> list[Rollout]:
        """Of a batch (None: of any), the last placed that have shown no token here, `count` of
        them at most."""
        staying = (r for r in reversed(self.rollouts.values()) if not (r.releasing or r.yielded))
        own = (r for r in staying if batch is None or r.batch is batch)
        newest = itertools.islice(own, max(0, count))
        return sorted(newest, key=lambda r: r.request_id)

    def pending_of_others(self, batch: BatchRecord) -> int:
        """Rollouts of other batches that are to stay, and have shown no token here."""
        staying = (r for r in self.rollouts.values() if not (r.releasing or r.yielded))
        return sum(r.batch is not batch for r in staying)

    def shortest(self, batch: BatchRecord, count: int) -> list[Rollout]:
        """Of a batch, those of the fewest tokens that are to stay, `count` of them at most."""
        held = [r for r in self.rollouts.values() if r.batch is batch and not r.releasing]
        return sorted(held, key=lambda r: (r.length, r.sample))[:count]

    def forgive(self, seconds: float, now: float) -> None:
        """No answer could be heard for so long, by our own fault."""
        for rollout in self.rollouts.values():
            if rollout.releasing:
                rollout.release(min(now, rollout.asked_at + seconds))
