"""Sums over a step: tokens, instances, and integrals over time."""

import msgspec


class Integral:
    """Of a level that changes in steps: instance-seconds, dollars."""

    __slots__ = ("_at", "_sum", "level", "lumps")

    def __init__(self, now: float, level: float = 0.0) -> None:
        self.level = level
        self.lumps = 0.0  # of the sum, what was added at once
        self._sum = 0.0
        self._at = now

    def resume(self, total: float, now: float) -> None:
        """Go on from a sum that another began."""
        self._sum, self._at = total, now

    def set(self, level: float, now: float) -> None:
        if now > self._at:
            self._sum += self.level * (now - self._at)
            self._at = now
        self.level = level

    def add(self, amount: float) -> None:
        """What does not depend on time: dollars for bytes."""
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
    joined: int = 0
    gone: int = 0  # instances lost
    resumed: int = 0  # responses placed after an answer
    returned: int = 0  # of these, where they had been
    victims: int = 0  # rollouts that servers gave back to others on their device

    @property
    def generated(self) -> int:
        return self.reserved + self.preemptible

    def sampled(self, tokens: int, *, reserved: bool) -> None:
        if reserved:
            self.reserved += tokens
        else:
            self.preemptible += tokens

    def wasted(self, tokens: int, *, reserved: bool) -> None:
        """Sampled, and lost at once."""
        self.sampled(tokens, reserved=reserved)
        self.lost += tokens

    def lose(self, tokens: int) -> None:
        """Sampled before, and lost now."""
        self.lost += tokens

    def prefill_again(self, tokens: int) -> None:
        self.prefilled_again += tokens

    def migrate(self, rollouts: int) -> None:
        self.migrated += rollouts

    def resume(self, *, returned: bool) -> None:
        """A response goes on after an answer.

        Args:
            returned: where it was before.
        """
        self.resumed += 1
        self.returned += returned

    def hand_back(self, rollouts: int) -> None:
        """A server has room for fewer."""
        self.victims += rollouts

    def instance_joined(self) -> None:
        self.joined += 1

    def instance_gone(self) -> None:
        self.gone += 1

    def copy(self) -> "Books":
        return msgspec.structs.replace(self)

    def values(self) -> tuple[int, ...]:
        return msgspec.structs.astuple(self)

    def settle(self, kept: int) -> None:
        """Make the counts agree with the tokens that are there, after a part of both was lost."""
        missing = self.generated - self.lost - kept
        if missing > 0:
            self.lost += missing
        else:
            self.preemptible -= missing

    def write_off(self) -> None:
        """All is lost that was sampled."""
        self.lost = self.generated

    def merge(self, other: "Books") -> None:
        """What another has is counted here too."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))
