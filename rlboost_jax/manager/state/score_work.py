"""The teachers that a server holds, and the sequences that it is to score for them."""

import math
from collections.abc import Collection

from rlboost_jax.manager.state.deadline import Deadline
from rlboost_jax.messages import ScoreTokens


class ScoreWork:
    """One server's part in scoring.

    Attributes:
        teachers: digests of the teachers that it holds.
        paid_bytes: of teachers that it was charged for pulling.
        held: its items by number, the oldest first.
        progress_at: time of its last answer, or of its oldest item if that came later; inf if it
            holds none.
    """

    __slots__ = ("held", "paid_bytes", "progress_at", "teachers")

    def __init__(self) -> None:
        self.teachers: Collection[str] = ()
        self.paid_bytes = 0
        self.held: dict[int, ScoreTokens] = {}
        self.progress_at = math.inf

    def taught(self, teachers: Collection[str], fetched: int, most: int) -> int:
        """Set the teachers that it holds, and return the bytes of its pulls to be charged.

        Args:
            fetched: bytes that it says it has pulled.
            most: bytes of all teachers: it is charged for no more than these.
        """
        self.teachers = teachers
        charged = min(fetched, max(0, most - self.paid_bytes))
        self.paid_bytes += charged
        return charged

    def forget_teachers(self) -> None:
        """Record that it holds none of the run's teachers yet."""
        self.teachers = ()

    def hold(self, item: ScoreTokens, now: float) -> None:
        """Add an item."""
        if not self.held:
            self.progress_at = now
        self.held[item.number] = item

    def answered(self, number: int, now: float) -> ScoreTokens | None:
        """Remove and return the oldest item; None if that has another number.

        Servers answer in order, so that none can hold an item back and seem to get on.
        """
        if number != next(iter(self.held), None):
            return None
        item = self.held.pop(number)
        self.progress_at = now if self.held else math.inf
        return item

    def release(self) -> list[int]:
        """Remove all items and return their numbers: its stream is over."""
        numbers = list(self.held)
        self.held.clear()
        self.progress_at = math.inf
        return numbers

    def deadline(self, patience: float) -> Deadline:
        """Return the time by which it has to answer.

        Args:
            patience: seconds that it may go without an answer.
        """
        reason = f"no progress with scores for {patience:.3g} s"
        return Deadline(self.progress_at + patience, reason, stuck=True)

    def forgive(self, seconds: float, now: float) -> None:
        """Extend its deadline by a time in which the manager heard nobody."""
        if self.progress_at < math.inf:
            self.progress_at = min(now, self.progress_at + seconds)
