"""What one can buy together: so many instances of each type, and a shape for the learner."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rlboost_jax.simulator.plan.price_list import PriceList


@dataclass(frozen=True, order=True)
class Mix:
    counts: tuple[int, ...]  # of each type, as the price list has them
    reserved: int = 0  # which shape

    @property
    def instances(self) -> int:
        return sum(self.counts)


@dataclass(frozen=True, kw_only=True)
class Space:
    """All mixes that can be bought.

    Args:
        most: of each type.
        total: of all types together.
        shapes: for the learner.
    """

    most: tuple[int, ...]
    total: int
    shapes: int

    @property
    def size(self) -> int:
        """Number of mixes: coefficients of a product of polynomials."""
        ways = [1] + [0] * self.total
        for most in self.most:
            ways = [
                sum(ways[n - own] for own in range(min(most, n) + 1)) for n in range(self.total + 1)
            ]
        return self.shapes * sum(ways)

    def __iter__(self) -> Iterator[Mix]:
        for reserved in range(self.shapes):
            for counts in itertools.product(*(range(most + 1) for most in self.most)):
                if sum(counts) <= self.total:
                    yield Mix(counts, reserved)

    def __contains__(self, mix: Mix) -> bool:
        within = all(0 <= count <= most for count, most in zip(mix.counts, self.most, strict=True))
        return within and mix.instances <= self.total and 0 <= mix.reserved < self.shapes

    def neighbours(self, mix: Mix) -> Iterator[Mix]:
        """Yield mixes with one instance more or fewer, one of another type, or another shape."""
        kinds = range(len(self.most))
        changes = [{kind: step} for kind in kinds for step in (-1, 1)]
        changes += [{less: -1, more: 1} for less in kinds for more in kinds if less != more]
        found = [
            Mix(tuple(count + change.get(kind, 0) for kind, count in enumerate(mix.counts)),
                mix.reserved)
            for change in changes
        ]  # fmt: skip
        found += [Mix(mix.counts, shape) for shape in range(self.shapes) if shape != mix.reserved]
        return (each for each in found if each in self)

    def corners(self) -> Iterator[Mix]:
        """Yield mixes to begin a search with: without instances, or with a few of one type."""
        for shape in range(self.shapes):
            yield Mix((0,) * len(self.most), shape)
            for kind, most in enumerate(self.most):
                alone = min(most, self.total)
                for count in sorted({math.ceil(alone / 2), alone} - {0}):
                    counts = tuple(count if k == kind else 0 for k in range(len(self.most)))
                    yield Mix(counts, shape)


def space_of(prices: PriceList, *, total: int) -> Space:
    """List the mixes of a price list.

    Args:
        total: instances of all types together, at most.
    """
    return Space(
        most=tuple(min(each.max_instances, total) for each in prices.instances),
        total=total,
        shapes=max(1, len(prices.reserved)),
    )


def described(mix: Mix, names: Sequence[str]) -> str:
    """Describe a mix for people: `2 a + 1 b`."""
    parts = (f"{n} {name}" for n, name in zip(mix.counts, names, strict=True) if n)
    return " + ".join(parts) or "no instances"
