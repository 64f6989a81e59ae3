"""Queue of one step's rollouts that wait for an instance."""

import heapq
import math
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
Home = str | int  # the name of an instance, or the number of a group


class _Entry(Generic[T]):
    """Entry for one item, ordered as in the queue. It may be in two heaps, and is taken once."""

    __slots__ = ("item", "key", "taken")

    def __init__(self, key: tuple[bool, float, int], item: T) -> None:
        self.key, self.item = key, item
        self.taken = False

    def __lt__(self, other: "_Entry[T]") -> bool:
        return self.key < other.key

    def rank(self, ranks: dict[int, float]) -> None:
        fresh, _, sample = self.key
        self.key = fresh, ranks.get(sample, 0.0), sample

    def take(self) -> T:
        self.taken = True
        return self.item


class RolloutQueue(Generic[T]):
    """Rollouts with tokens first, being nearest to the tail; then by rank, then by sample."""

    def __init__(self) -> None:
        self._queue: list[_Entry[T]] = []
        self._homes: dict[Home, list[_Entry[T]]] = {}  # a queue for each home
        self._ranks: dict[int, float] = {}  # by sample, where their own order is not to count

    def __iter__(self) -> Iterator[T]:
        """Iterate in queue order, without taking the items."""
        return (entry.item for entry in sorted(self._queue) if not entry.taken)

    def put(self, item: T, sample: int, *, fresh: bool, home: Home | None = None) -> None:
        """Queue an item.

        Args:
            fresh: it has no tokens yet.
            home: by which it can be taken out of turn: the instance that it would rather go to,
                or its group; None: it cannot.
        """
        entry = _Entry((fresh, self.rank_of(sample), sample), item)
        heapq.heappush(self._queue, entry)
        if home is not None:
            heapq.heappush(self._homes.setdefault(home, []), entry)

    def take(self, count: int) -> list[T]:
        """Remove and return the next `count` items."""
        found: list[T] = []
        while len(found) < count:
            entry = heapq.heappop(self._queue)
            if not entry.taken:
                found.append(entry.take())
        return found

    def take_one(self, homes: Iterable[Home]) -> T:
        """Remove and return the first item of the first of these homes that has any.

        It is the next item of all if no home has one, or if that must not wait: it has tokens, or
        the rank -inf.
        """
        while self._queue[0].taken:
            heapq.heappop(self._queue)
        fresh, rank, _ = self._queue[0].key
        if fresh and rank > -math.inf:
            for home in homes:
                if self._first(home) is not None:
                    return self.take_first_of(home)
        return heapq.heappop(self._queue).take()

    def first_of(self, home: Home) -> T | None:
        """The next item of a home."""
        entry = self._first(home)
        return None if entry is None else entry.item

    def take_first_of(self, home: Home) -> T:
        """Remove and return the item that `first_of` names."""
        return heapq.heappop(self._homes[home]).take()

    def _first(self, home: Home) -> _Entry[T] | None:
        queue = self._homes.get(home, [])
        while queue and queue[0].taken:
            heapq.heappop(queue)
        if not queue:
            self._homes.pop(home, None)
            return None
        return queue[0]

    def clear(self) -> None:
        self._queue, self._homes = [], {}

    def rank(self, ranks: dict[int, float]) -> None:
        """Order samples by these ranks from now on, lowest first; samples without one have 0."""
        self._ranks = ranks
        self._queue = [entry for entry in self._queue if not entry.taken]
        self._homes = {
            home: [entry for entry in queue if not entry.taken]
            for home, queue in self._homes.items()
        }
        for entry in self._queue:
            entry.rank(ranks)
        for queue in (self._queue, *self._homes.values()):
            heapq.heapify(queue)

    def rank_of(self, sample: int) -> float:
        """Rank of a sample among those with tokens and among those without; lowest first."""
        return self._ranks.get(sample, 0.0)
