"""The queue of what waits for an instance, of one step."""

import heapq
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class Waiting(Generic[T]):
    """Those with tokens first, as they are nearest to the tail; then by rank, then by sample."""

    def __init__(self) -> None:
        self._queue: list[tuple[bool, float, int, T]] = []
        self._ranks: dict[int, float] = {}  # by sample, where their own order is not to count

    def __iter__(self) -> Iterator[T]:
        """In queue order, without taking them."""
        return (entry[-1] for entry in sorted(self._queue, key=lambda entry: entry[:-1]))

    def put(self, item: T, sample: int, *, fresh: bool) -> None:
        """Args:
        fresh: it has no tokens yet.
        """
        heapq.heappush(self._queue, (fresh, self.rank_of(sample), sample, item))

    def take(self, count: int) -> list[T]:
        """The next `count`, no longer in it."""
        return [heapq.heappop(self._queue)[-1] for _ in range(count)]

    def clear(self) -> None:
        self._queue = []

    def rank(self, ranks: dict[int, float]) -> None:
        """Queue by these from now on, lowest first; without one a sample counts as 0."""
        self._ranks = ranks
        self._queue = [
            (fresh, ranks.get(sample, 0.0), sample, item) for fresh, _, sample, item in self._queue
        ]
        heapq.heapify(self._queue)

    def rank_of(self, sample: int) -> float:
        """Among those with tokens and among those without; the lower the sooner."""
        return self._ranks.get(sample, 0.0)
