"""What is asked of the roster at every event, kept up to date as it changes.

Who is ready for which parameters, who holds more than one rollout, how many are being asked
back: to look through the whole fleet for it would make each token dearer the larger the
fleet is.
"""

import bisect
from collections import Counter
from dataclasses import dataclass

from rlboost_jax.manager.state.instances import Instance

Parameters = tuple[int, str]  # version and digest


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

    def add(self, instance: Instance) -> None:
        place = bisect.bisect(self._orders, instance.order)
        self._orders.insert(place, instance.order)
        self.instances.insert(place, instance)
        self.working += bool(instance.held)

    def remove(self, instance: Instance, *, working: bool) -> None:
        place = bisect.bisect_left(self._orders, instance.order)
        del self._orders[place], self.instances[place]
        self.working -= working


@dataclass(slots=True)
class _Noted:
    """What was known of an instance when it changed last."""

    pool: Pool | None = None
    releasing: int = 0
    working: bool = False


class Index:
    """Of all instances with a living stream."""

    def __init__(self) -> None:
        self.reserved: dict[int, Instance] = {}  # by stream, in the order in which they joined
        self.names: set[str] = set()
        self.claims: Counter[str] = Counter()  # streams of those that gave themselves that name
        self.prices: Counter[float] = Counter()  # of preemptible ones, dollars per hour
        self.crowded: dict[int, Instance] = {}  # with more than one rollout that is to stay
        self.overfull: dict[int, Instance] = {}  # with more of them than slots
        self.asked_back = 0  # rollouts that are being asked back
        self._pools: dict[Parameters, Pool] = {}
        self._empty = Pool()
        self._count = 0
        self._noted: dict[int, _Noted] = {}  # by stream

    def pool(self, version: int, digest: str) -> Pool:
        return self._pools.get((version, digest), self._empty)

    def works_with(self, instance: Instance, pool: Pool) -> bool:
        """Whether an instance is one of a pool."""
        noted = self._noted.get(instance.stream)
        return noted is not None and noted.pool is pool

    def join(self, instance: Instance) -> None:
        self._count += 1
        instance.order, instance.watcher = self._count, self
        self._noted[instance.stream] = _Noted()
        self.names.add(instance.name)
        self.claims[instance.hello.instance] += 1
        if instance.reserved:
            self.reserved[instance.stream] = instance
        else:
            self.prices[instance.hello.price_per_hour] += 1

    def leave(self, instance: Instance) -> None:
        """It is no longer counted, whatever it still holds."""
        self._enter(instance, None)
        instance.watcher = None
        self.asked_back -= self._noted.pop(instance.stream).releasing
        self.crowded.pop(instance.stream, None)
        self.overfull.pop(instance.stream, None)
        self.reserved.pop(instance.stream, None)
        self.names.discard(instance.name)
        _less(self.claims, instance.hello.instance)
        if not instance.reserved:
            _less(self.prices, instance.hello.price_per_hour)

    def held_changed(self, instance: Instance) -> None:
        """What it holds, or what of that is being asked back, is not what it was."""
        noted = self._noted[instance.stream]
        releasing, held = instance.num_releasing, len(instance.held)
        self.asked_back += releasing - noted.releasing
        noted.releasing = releasing
        for some, limit in ((self.crowded, 1), (self.overfull, instance.slots)):
            if held - releasing > limit:
                some[instance.stream] = instance
            else:
                some.pop(instance.stream, None)
        if (held > 0) != noted.working:
            noted.working = held > 0
            if noted.pool is not None:
                noted.pool.working += 1 if held else -1

    def state_changed(self, instance: Instance) -> None:
        """It is ready now, or no longer, or for other parameters."""
        ready = not instance.reserved and instance.state == "ready"
        key = (instance.version, instance.digest)
        if not ready or key[0] is None:
            self._enter(instance, None)
            return
        self._enter(instance, self._pools.setdefault((key[0], key[1]), Pool()))

    def _enter(self, instance: Instance, pool: Pool | None) -> None:
        noted = self._noted[instance.stream]
        before = noted.pool
        if before is pool:
            return
        if before is not None:
            before.remove(instance, working=noted.working)
            if not before.instances:
                self._pools = {key: p for key, p in self._pools.items() if p is not before}
        noted.pool = pool
        if pool is not None:
            pool.add(instance)


def _less(counter: Counter[str] | Counter[float], key: str | float) -> None:
    counter[key] -= 1  # type: ignore[index]
    if not counter[key]:  # type: ignore[index]
        del counter[key]  # type: ignore[arg-type]
