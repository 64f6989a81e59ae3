"""Machines on loan without a server."""

from collections import Counter
from collections.abc import Callable, Iterator


class FreeMachines:
    """Unordered set of free machines, with a count for each pool.

    Args:
        pool_of: the pool that a machine is lent for; "" for any.
    """

    def __init__(self, pool_of: Callable[[str], str]) -> None:
        self._pool_of = pool_of
        self._machines: dict[str, None] = {}
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._machines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._machines)

    def __contains__(self, machine: str) -> bool:
        return machine in self._machines

    def add(self, machine: str) -> None:
        if machine not in self._machines:
            self._machines[machine] = None
            self._counts[self._pool_of(machine)] += 1

    def remove(self, machine: str) -> None:
        """Remove a machine, if it is there."""
        if machine in self._machines:
            del self._machines[machine]
            self._counts[self._pool_of(machine)] -= 1

    def serves(self, machine: str, pool: str) -> bool:
        """Whether a machine is free for servers of a pool."""
        return machine in self._machines and self._pool_of(machine) in ("", pool)

    def of(self, pool: str) -> int:
        """Number of machines free for servers of a pool."""
        return self._counts[pool] + self._counts[""]
