"""Aggregates over the roster that every event needs, kept up to date as it changes.

Who is ready for which parameters, who holds more than one rollout, how many are being asked
back: to look through the whole fleet for it would make each token dearer the larger the
fleet is.
"""

import bisect
import math
from collections import Counter
from typing import TypeVar

from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.sequences.identities import Version

Key = tuple[Version, str]  # of parameters: version and digest


T = TypeVar("T", str, float)


class Tally(Counter[T]):
    """Counter without entries of 0."""

    def more(self, key: T) -> None:
        self[key] += 1

    def less(self, key: T) -> None:
        self[key] -= 1
        if not self[key]:
            del self[key]


class Pool:
    """Preemptible instances that are ready for the same parameters."""

    __slots__ = ("_orders", "instances", "working")

    def __init__(self) -> None:
        self.instances: list[Instance] = []  # in the order in which they joined
        self.working = 0  # of them hold something
        self._orders: list[int] = []

    @property
    def idle(self) -> int:
        return len(self.instances) - self.working

    def enter(self, instance: Instance) -> None:
        place = bisect.bisect(self._orders, instance.order)
        self._orders.insert(place, instance.order)
        self.instances.insert(place, instance)
        self.working += bool(instance.held)

    def leave(self, instance: Instance, *, working: bool) -> None:
        place = bisect.bisect_left(self._orders, instance.order)
        del self._orders[place], self.instances[place]
        self.working -= working

    def began(self) -> None:
        """Count an instance that held nothing and holds a rollout now."""
        self.working += 1

    def ended(self) -> None:
        """Count an instance that holds nothing any more."""
        self.working -= 1


class Index:
    """Aggregates over all instances with an open stream."""

    def __init__(self) -> None:
        self.reserved: dict[int, Instance] = {}  # by stream, in the order in which they joined
        self.names: set[str] = set()
        self.claims: Tally[str] = Tally()  # by name: streams that say they have it
        self.prices: Tally[float] = Tally()  # of preemptible ones, dollars per hour
        self._price_of: dict[int, float] = {}  # of each of them, by stream
        self.num_preemptible = 0
        self.hourly = 0.0  # dollars, for all of these
        self.crowded: dict[int, Instance] = {}  # with more than one rollout that is to stay
        self.overfull: dict[int, Instance] = {}  # with more of them than room
        self.free: dict[int, Instance] = {}  # preemptible ones that hold nothing
        self.bidders: dict[int, Instance] = {}  # that servers of other runs are beside
        self._elsewhere: set[int] = set()  # bidders without a slot: another run pays for these
        self.num_releasing = 0  # rollouts that are being released
        self.lent = 0  # slots that others on their devices have of preemptible ones
        self.num_frozen = 0  # of these, those that grow again with the next step only
        self.moves = 0  # instances that came, went, or were sent to another version
        self._pools: dict[Key, Pool] = {}
        self._empty = Pool()
        self._count = 0
        # What was known of each when it changed last, by stream:
        self._pool_of: dict[int, Pool | None] = {}
        self._releasing: dict[int, int] = {}
        self._working: dict[int, bool] = {}
        self._lent: dict[int, tuple[int, bool]] = {}

    def pool(self, version: Version, digest: str) -> Pool:
        return self._pools.get((version, digest), self._empty)

    def works_with(self, instance: Instance, pool: Pool) -> bool:
        """Whether an instance is one of a pool."""
        return self._pool_of.get(instance.stream) is pool

    def join(self, instance: Instance) -> None:
        self._count += 1
        self.moved()
        instance.enter(self._count, self)
        stream = instance.stream
        self._pool_of[stream], self._releasing[stream], self._working[stream] = None, 0, False
        self.names.add(instance.name)
        self.claims.more(instance.hello.instance)
        if instance.reserved:
            self.reserved[instance.stream] = instance
        else:
            self._price_of[stream] = instance.hello.price_per_hour
            self.prices.more(instance.hello.price_per_hour)
            self._priced()
            self.free[instance.stream] = instance
            if instance.hello.bids:
                self.bidders[stream] = instance

    def leave(self, instance: Instance) -> None:
        """Stop counting an instance, whatever it still holds."""
        self.moved()
        self._enter(instance, None)
        self._lend(instance.stream, 0, frozen=False)
        instance.quit()
        del self._pool_of[instance.stream], self._working[instance.stream]
        self.num_releasing -= self._releasing.pop(instance.stream)
        self.crowded.pop(instance.stream, None)
        self.overfull.pop(instance.stream, None)
        self.free.pop(instance.stream, None)
        self.reserved.pop(instance.stream, None)
        self.bidders.pop(instance.stream, None)
        self._elsewhere.discard(instance.stream)
        self.names.discard(instance.name)
        self.claims.less(instance.hello.instance)
        if not instance.reserved:
            self.prices.less(self._price_of.pop(instance.stream))
            self._priced()

    def moved(self) -> None:
        """Note that an instance is to fetch another version, or that one came or went."""
        self.moves += 1

    def price_of(self, stream: int) -> float:
        """Dollars per hour of a preemptible instance."""
        return self._price_of[stream]

    def reprice(self, stream: int, price_per_hour: float) -> None:
        """Change the price of a preemptible instance."""
        self.prices.less(self._price_of[stream])
        self._price_of[stream] = price_per_hour
        self.prices.more(price_per_hour)
        self._priced()

    def held_changed(self, instance: Instance) -> None:
        """Update for a change in the rollouts an instance holds or releases."""
        stream = instance.stream
        releasing, held = instance.num_releasing, len(instance.held)
        staying = held - releasing
        self.num_releasing += releasing - self._releasing[stream]
        self._releasing[stream] = releasing
        if staying > 1:
            self.crowded[stream] = instance
        else:
            self.crowded.pop(stream, None)
        if staying > instance.room:
            self.overfull[stream] = instance
        else:
            self.overfull.pop(stream, None)
        if (held > 0) != self._working[stream]:
            self._working[stream] = held > 0
            if held:
                self.free.pop(stream, None)
            elif not instance.reserved:
                self.free[stream] = instance
            pool = self._pool_of[stream]
            if pool is not None and held:
                pool.began()
            elif pool is not None:
                pool.ended()

    def state_changed(self, instance: Instance) -> None:
        """Update for a change of an instance's readiness, parameters or slots."""
        lent = instance.hello.slots - instance.slots
        if instance.hello.bids and (instance.slots == 0) != (instance.stream in self._elsewhere):
            self._elsewhere ^= {instance.stream}
            self._priced()
        self._lend(instance.stream, lent, frozen=instance.frozen)
        ready = not instance.reserved and instance.state == "ready" and instance.slots > 0
        key = (instance.parameters.version, instance.parameters.digest)
        if not ready or key[0] is None:
            self._enter(instance, None)
            return
        self._enter(instance, self._pools.setdefault((key[0], key[1]), Pool()))

    def _lend(self, stream: int, slots: int, *, frozen: bool) -> None:
        """Set how many slots of an instance other programs use for now."""
        known, was_frozen = self._lent.pop(stream, (0, False))
        self.lent += slots - known
        self.num_frozen += frozen - was_frozen
        if slots or frozen:
            self._lent[stream] = slots, frozen

    def _priced(self) -> None:
        """Update the total price after preemptible instances have come or gone."""
        self.num_preemptible = sum(self.prices.values())
        self.hourly = sum([price * count for price, count in self.prices.items()])
        if self._elsewhere:
            self.hourly -= math.fsum(self._price_of[stream] for stream in self._elsewhere)

    def _enter(self, instance: Instance, pool: Pool | None) -> None:
        before = self._pool_of[instance.stream]
        if before is pool:
            return
        if before is not None:
            before.leave(instance, working=self._working[instance.stream])
            if not before.instances:
                self._pools = {key: p for key, p in self._pools.items() if p is not before}
        self._pool_of[instance.stream] = pool
        if pool is not None:
            pool.enter(instance)
