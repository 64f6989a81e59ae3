"""Sums over a step: tokens, instances, and integrals over time."""

import msgspec

from rlboost_jax.messages import DraftCounts


class Integral:
    """Time integral of a level that changes in steps, such as instance-seconds or dollars."""

    __slots__ = ("_at", "_sum", "level", "lumps")

    def __init__(self, now: float, level: float = 0.0) -> None:
        self.level = level
        self.lumps = 0.0  # of the sum, what was added at once
        self._sum = 0.0
        self._at = now

    def resume(self, total: float, now: float) -> None:
        """Continue from a sum that an earlier manager began."""
        self._sum, self._at = total, now

    def set(self, level: float, now: float) -> None:
        if now > self._at:
            self._sum += self.level * (now - self._at)
            self._at = now
        self.level = level

    def add(self, amount: float) -> None:
        """Add an amount that does not depend on time, such as dollars per byte sent."""
        self._sum += amount
        self.lumps += amount

    def total(self, now: float) -> float:
        return self._sum + self.level * max(0.0, now - self._at)


class Books(msgspec.Struct, kw_only=True):
    """Counts of one step.

    Every token that any engine sampled is in `reserved` or `preemptible`; it ends in a
    delivered response or in `lost`, so generated = delivered + lost once a step is over.
    """

    reserved: int = 0
    preemptible: int = 0
    lost: int = 0
    prefilled_again: int = 0
    migrated: int = 0
    resumed: int = 0  # responses placed after an answer
    returned: int = 0  # of these, where they had been
    victims: int = 0  # rollouts that servers gave back to others on their device
    drafted: int = 0  # tokens that engines verified
    accepted: int = 0  # of these
    steps_saved: int = 0  # decode steps, by these
    dollars_saved: float = 0.0  # by these, about: see `observe.metrics`

    @property
    def generated(self) -> int:
        return self.reserved + self.preemptible

    def sampled(self, tokens: int, *, reserved: bool) -> None:
        if reserved:
            self.reserved += tokens
        else:
            self.preemptible += tokens

    def wasted(self, tokens: int, *, reserved: bool) -> None:
        """Count tokens that were sampled and are lost at once."""
        self.sampled(tokens, reserved=reserved)
        self.lost += tokens

    def lose(self, tokens: int) -> None:
        """Count tokens as lost that were counted as sampled before."""
        self.lost += tokens

    def prefill_again(self, tokens: int) -> None:
        self.prefilled_again += tokens

    def migrate(self, rollouts: int) -> None:
        self.migrated += rollouts

    def resume(self, *, returned: bool) -> None:
        """Count a response that was placed again after an answer.

        Args:
            returned: whether to the instance it was at before.
        """
        self.resumed += 1
        self.returned += returned

    def hand_back(self, rollouts: int) -> None:
        """Count rollouts that a server returned because it lost slots or memory."""
        self.victims += rollouts

    def draft(self, drafts: DraftCounts, dollars: float) -> None:
        """Count what the drafts of an engine came to.

        Args:
            dollars: that they saved, about.
        """
        self.drafted += drafts.drafted
        self.accepted += drafts.accepted
        self.steps_saved += drafts.steps_saved
        self.dollars_saved += dollars

    def copy(self) -> "Books":
        return msgspec.structs.replace(self)

    def values(self) -> tuple[float, ...]:
        return msgspec.structs.astuple(self)

    def settle(self, kept: int) -> None:
        """Correct the counts to `kept` tokens, after part of the journal was lost."""
        missing = self.generated - self.lost - kept
        if missing > 0:
            self.lost += missing
        else:
            self.preemptible -= missing

    def write_off(self) -> None:
        """Count every sampled token as lost."""
        self.lost = self.generated

    def merge(self, other: "Books") -> None:
        """Add the counts of another."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
