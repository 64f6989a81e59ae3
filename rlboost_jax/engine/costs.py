"""How long our own programs take, from the latest: a mean, and its mean deviation.

Estimated as TCP estimates round trips: the newest counts an eighth in the mean, its deviation a
quarter in the mean deviation. A program is expected to last the mean and four deviations.
Source: Jacobson 1988, "Congestion Avoidance and Control".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

NEWEST, NEWEST_DEVIATION, DEVIATIONS = 1 / 8, 1 / 4, 4
_MIXED: Final = 0  # in place of rows


@dataclass(frozen=True, slots=True)
class Usual:
    """Smoothed duration of a program: mean and mean deviation, in seconds."""

    mean: float
    deviation: float

    @property
    def bound(self) -> float:
        return self.mean + DEVIATIONS * self.deviation

    def with_one(self, seconds: float) -> "Usual":
        off = abs(seconds - self.mean)
        return Usual(
            self.mean + NEWEST * (seconds - self.mean),
            self.deviation + NEWEST_DEVIATION * (off - self.deviation),
        )


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Expected durations of one engine's programs, from measured ones.

    A row count that never ran is expected to take as long as the smallest measured one above it, or
    0 s if there is none: then it is tried, and measured.
    """

    # Rows of a decode step → seconds.
    known: Mapping[int, Usual] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def mixed(self) -> float:
        """Expected seconds of a program that prefills."""
        return self._bound(_MIXED)

    def step(self, rows: int) -> float:
        """Expected seconds of one decode step with `rows` rows."""
        if rows in self.known:
            return self._bound(rows)
        larger = [size for size in self.known if size > rows]
        return self._bound(min(larger)) if larger else 0.0

    def _bound(self, key: int) -> float:
        return self.known[key].bound if key in self.known else 0.0

    def mixed_took(self, seconds: float) -> "Costs":
        return self._took(_MIXED, seconds)

    def steps_took(self, rows: int, steps: int, seconds: float) -> "Costs":
        """Record the time of a program's decode steps.

        Args:
            rows: of the program.
            steps: that it did.
        """
        return self._took(rows, seconds / steps)

    def _took(self, key: int, seconds: float) -> "Costs":
        before = self.known.get(key)
        usual = Usual(seconds, seconds / 2) if before is None else before.with_one(seconds)
        return replace(self, known=MappingProxyType({**self.known, key: usual}))
