"""All rollout servers with a living stream: leases, who may join, time and money.

A server is alive as long as it says so (its lease), hears us (what it echoes of our answers)
and gets on with the work it holds (its progress).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.journal import RunState
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.deadline import Deadline, loaded_by
from rlboost_jax.manager.state.index import Index, Pool
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.names import Names, identity
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.messages import Hello, Renew, TokenBatch
from rlboost_jax.settings.fingerprints import difference

MAX_PRICE = 100_000.0  # dollars per hour; more is a mistake, or meant to spoil the accounts
MAX_BANISHED = 100  # the oldest may try again, and would be caught again
NEWEST_START = 0.3  # weight of the last start-up
ANSWER_MISSED = 1.5  # renewals: the age of what one echoes that has missed an answer
RECEIVES_NOTHING = "it receives nothing from us"


class Roster:
    """All instances with a living stream, in the order in which they joined."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self.streams: dict[int, Instance] = {}
        self.index = Index()
        self.fingerprint: str | None = None  # of the first reserved engine
        self.changed = False  # a member came or went since a step began
        self.joined = 0
        self.lost = 0
        self.losses = 0.0  # lost ones that the market took
        self.alive = Integral(now)  # instance-seconds of preemptible ones
        self.start_seconds = math.inf  # from an order to readiness, lately; inf: not known
        self.in_flight = {False: 0, True: 0}  # reserved? → most tokens that may still come
        self.cost = Integral(now)  # dollars
        self.ready = Integral(now)  # instance-seconds of preemptible ones with work to give
        self.own: set[str] = set()  # names that the trainer's engines have had
        self.names = Names()
        self.banished: dict[str, str] = {}  # who may not join again (`identity`), and why
        self.check_at = math.inf  # no server is due for anything before
        # That a rollout holds while it is sampled, on average. Before a step is known: as if
        # responses had any length up to the longest.
        self.row_tokens = settings.slot_tokens / 2

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.streams.values())

    def objection(self, hello: Hello) -> str:
        """Why a server cannot take part; "" if it can."""
        needed = self._settings.slot_tokens
        if not 0 < hello.slots <= self._settings.slots:
            return (
                f"slots = {hello.slots} is not in 1..{self._settings.slots} (engine.slots); start "
                "the server with this run's configuration"
            )
        if hello.slot_tokens < needed:
            return (
                f"slot_tokens = {hello.slot_tokens} is less than the {needed} of this run; "
                "start the server with this run's configuration"
            )
        if not 0 <= hello.price_per_hour <= MAX_PRICE:
            return (
                f"price_per_hour = {hello.price_per_hour} is not in 0..{MAX_PRICE:g}; set --price"
            )
        if self.mismatch(hello):
            return self.mismatch(hello)
        if hello.reserved:
            return ""
        if hello.instance in self.own:
            return f"the name {hello.instance!r} is the trainer's own engine's; choose another"
        most = self._settings.max_servers
        if len(self.streams) >= most:
            return f"there are {most} instances already; leave some work to the learner"
        if reason := self.banished.get(identity(hello)):
            return f"sent away before: {reason}; look for a fault of that host, then start it anew"
        return ""

    def mismatch(self, hello: Hello) -> str:
        """Why its tokens could differ in bits from the reserved engine's; "" if they cannot."""
        if not self._settings.deterministic or self.fingerprint is None:
            return ""
        if hello.fingerprint == self.fingerprint:
            return ""
        return (
            f"fingerprint {hello.fingerprint!r} is not {self.fingerprint!r} of the reserved "
            f"engine{difference(hello.fingerprint, self.fingerprint)}; run the same program, or "
            "set deterministic = False"
        )

    @property
    def trusting(self) -> bool:
        """Deterministic runs wait for the reserved engine's fingerprint. Once that is known,
        nobody with another one is here."""
        return not self._settings.deterministic or self.fingerprint is not None

    def pool(self, batch: BatchRecord) -> Pool:
        """Preemptible instances that are ready for a step."""
        return self.index.pool(batch.begin.version, batch.begin.params_digest)

    def join(self, stream: int, hello: Hello, now: float) -> Instance:
        instance = Instance(stream, self.names.give(hello, self.index.names), hello, now)
        self.streams[stream] = instance
        self.index.join(instance)
        instance.fit(self.row_tokens)
        self.look_at(now + self.lease(instance))
        self.joined += not hello.reserved
        if hello.reserved:
            self.fingerprint = self.fingerprint or hello.fingerprint
            self.own.add(instance.name)
        return instance

    def banish(self, name: str, reason: str) -> None:
        """Let the server that had that name not join again: its next work would go the same way."""
        if (who := self.names.owner(name)) is not None:
            self.banished.setdefault(who, reason)
            if len(self.banished) > MAX_BANISHED:
                del self.banished[next(iter(self.banished))]

    def speaks(self, name: str, by_server: Callable[[Hello], bool]) -> bool:
        """Whether a living stream is that of the provider's server of that name."""
        return name in self.index.claims and any(by_server(i.hello) for i in self)

    def same_process(self, name: str) -> list[Instance]:
        """The living streams of the server that had that name, whatever they are called now."""
        who = self.names.owner(name)
        return [i for i in self if not i.reserved and identity(i.hello) == who]

    def retire(self, instance: Instance) -> None:
        """It goes soon: no more work for it."""
        self.changed |= instance.member and not instance.departure.dismissed
        instance.retire()

    def received(self, instance: Instance, batch: TokenBatch, num_tokens: int, now: float) -> None:
        """An instance's batch was taken in, and it has begun its next dispatch."""
        more = instance.activity.received(batch, num_tokens, now)
        self.in_flight[instance.reserved] += more

    def learn(self, batch: BatchRecord) -> None:
        """Take in how long the responses of a batch that is over were.

        One of n tokens holds its prompt and half of them on average, and is sampled for n steps.
        """
        ended = [size for r in batch.rollouts if r.result is not None for size in r.sizes]
        if steps := sum([sampled for _, sampled in ended]):
            held = sum([sampled * (length - sampled / 2) for length, sampled in ended])
            self.row_tokens = held / steps
            for instance in self:
                instance.fit(self.row_tokens)

    def idle(self, instance: Instance) -> None:
        """Nothing more comes of the dispatch that an instance had begun."""
        self.in_flight[instance.reserved] += instance.activity.charge(0)

    def under_way(self) -> tuple[int, int]:
        """Most tokens that may still come: of reserved instances, of preemptible ones."""
        return self.in_flight[True], self.in_flight[False]

    def begin_batch(self) -> None:
        """Whether the fleet changes is asked anew."""
        self.changed = False

    def came(self) -> None:
        """A member is there that was not when the step began, or one that was is none."""
        self.changed = True

    def count_loss(self, *, by_market: bool) -> None:
        """A preemptible instance was lost.

        Args:
            by_market: and by no fault of its own.
        """
        self.lost += 1
        self.losses += by_market

    def started(self, seconds: float) -> None:
        """An instance was ready so long after it was ordered."""
        known = self.start_seconds if self.start_seconds < math.inf else seconds
        self.start_seconds = known + NEWEST_START * (seconds - known)

    def leave(self, instance: Instance) -> None:
        self.idle(instance)
        del self.streams[instance.stream]
        self.index.leave(instance)
        self.changed |= instance.member

    def deadline(self, instance: Instance) -> Deadline:
        """Of a server, the first one.

        Tokens and answers come over its line, so what its lease has beyond the shortest is added
        to its patience.
        """
        lease = self.lease(instance)
        gone = self._loss_of_line(instance, lease)
        manager, activity, line = self._settings.manager, instance.activity, 0.0
        if not instance.reserved:
            line = lease - manager.lease_seconds
            since = instance.parameters.progress_at
            gone = min(gone, loaded_by(since, manager.progress_seconds, line))
        if not instance.held:
            return gone
        patience = activity.patience(manager.progress_seconds) + line
        silent, owing = (
            f"no progress for {patience:.3g} s",
            f"gave nothing back for {patience:.3g} s",
        )
        return min(
            gone,
            Deadline(activity.progress_at + patience, silent, stuck=True),
            Deadline(instance.asked_at + patience, owing, stuck=True),
        )

    def _loss_of_line(self, instance: Instance, lease: float) -> Deadline:
        """When it counts as lost for its line.

        A server that receives nothing is found by `unreachable` at its next message, unless its
        messages are held up by then for want of our acknowledgements. Then the last of them shows
        it: it echoes an answer that is older than any it would have received since. A server that
        is merely silent has its whole lease.
        """
        known, renew = instance.lease, self._settings.manager.renew_seconds
        silent = Deadline(known.heard_at + lease, f"silent for {lease:.3g} s", stuck=False)
        way = known.line.round_trip + 4 * known.line.deviation
        if known.echo_age <= ANSWER_MISSED * renew + way:
            return silent
        cut_off = known.hears_at + lease + renew + way
        reason = f"unreachable for {lease:.3g} s: {RECEIVES_NOTHING}"
        return min(silent, Deadline(cut_off, reason, stuck=False))

    @property
    def shortest_lease(self) -> float:
        """Seconds, on a good line."""
        return self._settings.manager.lease_seconds

    def lease(self, instance: Instance) -> float:
        """Seconds that a server may be silent for, on its line.

        The trainer's own engines are behind none. When they end, so does their stream; one that is
        silent is on a host that is busy.
        """
        manager = self._settings.manager
        if instance.reserved:
            return max(manager.lease_seconds, manager.longest_lease_seconds)
        return instance.lease.line.lease(
            manager.lease_seconds, manager.longest_lease_seconds, manager.renew_seconds
        )

    def watch(self, instance: Instance) -> None:
        """It holds work from now on, or its lease is another: look at it in time."""
        self.look_at(self.deadline(instance).at)

    def look_at(self, moment: float) -> None:
        """Some server may be due for something then."""
        self.check_at = min(self.check_at, moment)

    def looked(self, again: float) -> None:
        """All were looked at; no server is due for anything before `again`."""
        self.check_at = again

    def unreachable(self, instance: Instance, renewal: Renew, now: float) -> str:
        """Take in what a renewal says of its line. Returns why its server counts as lost, or "".

        A server that is merely silent is judged by its lease. So this one is judged as it speaks:
        by the next renewal it would be too late.
        """
        instance.lease.echoed(renewal.echo, now)
        renew = self._settings.manager.renew_seconds
        instance.lease.measured(renewal.round_trip, now, renew)
        self.watch(instance)
        patience = self.lease(instance) - renew
        silence = now - instance.lease.hears_at
        return f"unreachable for {silence:.2g} s: {RECEIVES_NOTHING}" if silence >= patience else ""

    def forgive(self, seconds: float, now: float) -> None:
        """We heard nobody for so long, by our own fault. Machines go when they go, though."""
        for instance in self:
            instance.forgive(seconds, now)

    def excuse(self, seconds: float, now: float) -> None:
        """Nobody heard what we have to say for so long, by our own fault."""
        for instance in self:
            instance.excuse(seconds, now)

    def mark(self) -> tuple[object, ...]:
        """Another whenever `snapshot` has changed by more than time going by."""
        cost, banished = self.cost, len(self.banished)
        return self.joined, self.lost, self.names.numbers, banished, cost.level, cost.lumps

    def snapshot(self, now: float) -> dict[str, Any]:
        """What of a `RunState` is known here."""
        return {
            "banished": dict(self.banished),
            "joined": self.joined,
            "lost": self.lost,
            "numbers": self.names.numbers,
            "dollars": self.cost.total(now),
            "dollars_per_second": self.cost.level,
        }

    def restore(self, entry: RunState, now: float) -> None:
        """Nobody is connected yet."""
        self.joined, self.lost = entry.joined, entry.lost
        self.names.resume(entry.numbers)
        self.banished = dict(entry.banished)
        since = max(0.0, now - entry.at)  # a clock that was set back says nothing
        self.cost.resume(entry.dollars + since * entry.dollars_per_second, now)

    @property
    def members(self) -> int:
        return sum(instance.member for instance in self)

    @property
    def num_reserved(self) -> int:
        return len(self.index.reserved)

    def account(self, batches: Iterable[BatchRecord], starting: float, now: float) -> None:
        """Bring the integrals up to date after something changed.

        Args:
            batches: that are open.
            starting: dollars per hour of servers that the provider has granted and that have
                not joined yet.
        """
        fleet, index = self._settings.fleet, self.index
        hourly = fleet.reserved_price_per_hour + index.hourly + starting
        self.cost.set(hourly / 3600, now)
        self.alive.set(index.num_preemptible, now)
        pools = {self.pool(batch) for batch in batches}  # of one version, one
        self.ready.set(sum([len(pool.instances) for pool in pools]), now)

    def pay_egress(self, num_bytes: int) -> None:
        """Weights have left the learner's site."""
        self.cost.add(num_bytes / 1e9 * self._settings.fleet.egress_dollars_per_gb)
