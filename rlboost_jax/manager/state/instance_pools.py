"""The pools that instances come from.

A run without `fleet.pools` has one pool, `ANY_POOL`; only its pauses are kept.
"""

from collections.abc import Iterator, Mapping, Sequence

from rlboost_jax.manager.journal_entries import PoolEntry
from rlboost_jax.manager.state.pool_record import PoolRecord
from rlboost_jax.providers.base import ANY_POOL
from rlboost_jax.settings.pool_config import PoolConfig

LAST_RETRY_SECONDS = 30.0
LAST_POOL_RETRY_SECONDS = 600.0  # where others can be asked meanwhile
QUICK_SECONDS = 60.0  # beyond a start-up: who is taken away before that came for nothing


class Pools:
    """Records of all pools.

    Args:
        configured: `fleet.pools`; () for one pool, of `most` instances.

    Attributes:
        several: each is asked by itself.
        streams: of members, and their pool.
    """

    def __init__(self, configured: Sequence[PoolConfig], *, most: int, now: float = 0.0) -> None:
        self.several = bool(configured)
        known = [(p.name, p.max_instances, p.price_per_hour) for p in configured]
        longest = LAST_POOL_RETRY_SECONDS if known else LAST_RETRY_SECONDS
        self._pools = {
            name: PoolRecord(name, most=count, price=price, longest_retry=longest, now=now)
            for name, count, price in known or [(ANY_POOL, most, 0.0)]
        }
        self.streams: dict[int, str] = {}

    def __iter__(self) -> Iterator[PoolRecord]:
        return iter(self._pools.values())

    def __getitem__(self, name: str) -> PoolRecord:
        return self._pools[name]

    def get(self, name: str) -> PoolRecord | None:
        return self._pools.get(name)

    def named(self, name: str) -> dict[str, str]:
        """Field for an event line that names its pool; empty with a single pool."""
        return {"pool": name} if self.several and name in self._pools else {}

    def of_stream(self, stream: int) -> dict[str, str]:
        """Field for an event line that names the pool of an instance's stream."""
        return self.named(self.streams.get(stream, ""))

    @property
    def waiting_hourly(self) -> float:
        """Dollars per hour for instances that were requested and have not joined."""
        return sum(pool.waiting * pool.price for pool in self)

    def of_name(self, instance: str) -> str:
        """Pool of an instance that an earlier manager has named.

        Instances of a pool that no longer exists count as the first pool's.
        """
        name = instance.rpartition("-")[0]
        return name if name in self._pools else next(iter(self._pools))

    def of_machine(self, machine: str) -> str:
        """The pool that a machine is lent for, as POOL/MACHINE; "" for any."""
        name = machine.partition("/")[0]
        return name if self.several and name in self._pools else ""

    def joined(self, name: str, stream: int, now: float) -> None:
        """Record that an instance of a pool has a stream."""
        self.streams[stream] = name
        self._pools[name].join(now)

    def left(self, stream: int, now: float, *, by_market: bool) -> None:
        """Record the end of a stream, which may belong to no pool."""
        if (name := self.streams.pop(stream, "")) in self._pools:
            self._pools[name].leave(now, by_market=by_market)

    def quick(self, name: str, lived: float) -> bool:
        """Whether an instance that was taken away after `lived` seconds came for nothing."""
        return self.several and lived < QUICK_SECONDS + self._pools[name].known_start

    def account(self, now: float) -> None:
        """Bring the time integrals up to date, after something changed."""
        if self.several:
            for pool in self:
                pool.account(now)

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does by more than passing time."""
        return tuple(pool.mark() for pool in self) if self.several else ()

    def snapshot(self, now: float) -> dict[str, PoolEntry]:
        """State of several pools that outlives this manager; empty with a single pool."""
        return {pool.name: pool.snapshot(now) for pool in self} if self.several else {}

    def restore(self, entries: Mapping[str, PoolEntry], since: float, now: float) -> None:
        """Restore from the journal, see `PoolRecord.restore`."""
        for name, entry in entries.items():
            if (pool := self._pools.get(name)) is not None:
                pool.restore(entry, since, now)
