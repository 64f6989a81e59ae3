"""The pools that instances come from: at least one.

A run without `fleet.pools` has one pool, `ANY_POOL`, that its settings do not name. Nothing else
can be requested while it pauses, so its pauses are shorter and say less; its limit is the fleet's.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

from rlboost_jax.manager.journal_entries import PoolEntry
from rlboost_jax.manager.state.pool_record import UNLIMITED, PoolRecord, PoolTerms
from rlboost_jax.providers.base import ANY_POOL
from rlboost_jax.settings.fleet_config import FleetConfig

LAST_RETRY_SECONDS = 30.0
LAST_POOL_RETRY_SECONDS = 600.0  # where others can be asked meanwhile
QUICK_SECONDS = 60.0


def pool_terms(fleet: FleetConfig) -> tuple[PoolTerms, ...]:
    """Terms of the pools of a fleet, of which there is at least one."""
    named = tuple(
        PoolTerms(
            name=pool.name,
            prefix=pool.name,
            most=pool.max_instances,
            price=pool.price_per_hour,
            longest_retry=LAST_POOL_RETRY_SECONDS,
            quick_seconds=QUICK_SECONDS,
            single_after=1,
        )
        for pool in fleet.pools
    )
    return named or (
        PoolTerms(
            name=ANY_POOL,
            prefix=fleet.name_prefix,
            named=False,
            most=UNLIMITED,
            later=UNLIMITED,
            price=fleet.price_per_hour,
            longest_retry=LAST_RETRY_SECONDS,
            quick_seconds=-math.inf,
            single_after=UNLIMITED,
        ),
    )


class Pools:
    """Records of all pools.

    Attributes:
        streams: of members, and their pool.
    """

    def __init__(self, terms: Iterable[PoolTerms], now: float = 0.0) -> None:
        self._pools = {each.name: PoolRecord(each, now) for each in terms}
        self.streams: dict[int, str] = {}

    def __iter__(self) -> Iterator[PoolRecord]:
        return iter(self._pools.values())

    def __getitem__(self, name: str) -> PoolRecord:
        return self._pools[name]

    def get(self, name: str) -> PoolRecord | None:
        return self._pools.get(name)

    @property
    def named(self) -> Iterator[PoolRecord]:
        """The pools that the settings name."""
        return (pool for pool in self if pool.terms.named)

    def field(self, name: str) -> dict[str, str]:
        """Field for an event line that names its pool; empty for one that has no name."""
        pool = self._pools.get(name)
        return {"pool": name} if pool is not None and pool.terms.named else {}

    def of_stream(self, stream: int) -> dict[str, str]:
        """Field for an event line that names the pool of an instance's stream."""
        return self.field(self.streams.get(stream, ""))

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
        return name if name in self._pools else ""

    def joined(self, name: str, stream: int, now: float) -> None:
        """Record that an instance of a pool has a stream."""
        self.streams[stream] = name
        self._pools[name].join(now)

    def left(self, stream: int, now: float, *, by_market: bool) -> None:
        """Record the end of a stream, which may belong to no pool."""
        if (name := self.streams.pop(stream, "")) in self._pools:
            self._pools[name].leave(now, by_market=by_market)

    def account(self, now: float) -> None:
        """Bring the time integrals up to date, after something changed."""
        for pool in self.named:
            pool.account(now)

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does by more than passing time."""
        return tuple(pool.mark() for pool in self.named)

    def snapshot(self, now: float) -> dict[str, PoolEntry]:
        """State of the named pools that outlives this manager."""
        return {pool.name: pool.snapshot(now) for pool in self.named}

    def restore(self, entries: Mapping[str, PoolEntry], since: float, now: float) -> None:
        """Restore from the journal, see `PoolRecord.restore`."""
        for name, entry in entries.items():
            if (pool := self._pools.get(name)) is not None:
                pool.restore(entry, since, now)
