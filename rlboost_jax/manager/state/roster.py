"""All rollout servers with an open stream: leases, admission, time and money.

A server is alive as long as it says so (its lease), hears us (what it echoes of our answers)
and gets on with the work it holds (its progress).
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.journal_entries import RunState
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.deadline import Deadline, loaded_by
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.rollouts import BatchRecord
from rlboost_jax.manager.state.roster_index import Index, Pool
from rlboost_jax.manager.state.server_names import ServerNames, identity
from rlboost_jax.messages import Hello, Renew, TokenBatch
from rlboost_jax.observe.departures import LOST, Departure
from rlboost_jax.settings.fingerprints import difference

MAX_PRICE = 100_000.0  # dollars per hour; more is a mistake, or meant to spoil the accounts
MAX_BANISHED = 100  # the oldest may try again, and would be caught again
NEWEST_START = 0.3  # weight of the last start-up
ANSWER_MISSED = 1.5  # renewals: the age of what one echoes that has missed an answer
RECEIVES_NOTHING = "it receives nothing from us"


class Roster:
    """All instances with an open stream, in the order in which they joined."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self.streams: dict[int, Instance] = {}
        self.index = Index()
        self.fingerprint: str | None = None  # of the first reserved engine
        self.changed = False  # a member came or went since a step began
        self.joined = 0
        self.lost = 0
        self.left = 0  # of the lost, with notice
        self.losses = 0.0  # lost ones that the market took
        self.alive = Integral(now)  # instance-seconds of preemptible ones
        self.start_seconds = math.inf  # from an order to readiness, lately; inf: not known
        self.in_flight = {False: 0, True: 0}  # reserved? → most tokens that may still come
        self.cost = Integral(now)  # dollars
        self.ready = Integral(now)  # instance-seconds of preemptible ones with work to give
        self.own: set[str] = set()  # names that the trainer's engines have had
        self.names = ServerNames()
        self.banished: dict[str, str] = {}  # who may not join again (`identity`), and why
        self.check_at = math.inf  # no server is due for anything before
        # Mean number of tokens that a rollout holds while it is sampled. Until a step has shown it:
        # half of a slot, as if all lengths were equally likely.
        self.row_tokens = settings.slot_tokens / 2

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.streams.values())

    def objection(self, hello: Hello) -> str:
        """Reason why a server cannot take part; "" if it can."""
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
        if not hello.fetches_lists:
            return "it is of a release before this manager's; install the manager's release there"
        if (mismatch := self.mismatch(hello)) or hello.reserved:
            return mismatch
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
        """Whether instances may be given work. Deterministic runs wait for the reserved engine's
        fingerprint; from then on no instance with another one is here.
        """
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
        """Never admit the server of that name again: its next work would go the same way."""
        if (who := self.names.owner(name)) is not None:
            self.banished.setdefault(who, reason)
            if len(self.banished) > MAX_BANISHED:
                del self.banished[next(iter(self.banished))]

    def speaks(self, name: str, by_server: Callable[[Hello], bool]) -> bool:
        """Whether an open stream is that of the provider's server of that name."""
        return name in self.index.claims and any(by_server(i.hello) for i in self)

    def same_process(self, name: str) -> list[Instance]:
        """Open streams of the server that had that name, under whatever names now."""
        who = self.names.owner(name)
        return [i for i in self if not i.reserved and identity(i.hello) == who]

    def retire(self, instance: Instance) -> None:
        """Stop giving work to an instance that leaves soon."""
        self.changed |= instance.member and not instance.departure.dismissed
        instance.retire()

    def received(self, instance: Instance, batch: TokenBatch, num_tokens: int, now: float) -> None:
        """Record a token batch of an instance, which has begun its next dispatch."""
        more = instance.activity.received(batch, num_tokens, now)
        self.in_flight[instance.reserved] += more

    def learn(self, batch: BatchRecord) -> None:
        """Learn the mean context of rollouts from a finished batch, and refit the instances' room.

        One of n tokens holds its prompt and half of them on average, and is sampled for n steps.
        """
        ended = [one for r in batch.rollouts if r.finished for one in r.sequences.transcripts]
        if steps := sum([one.num_sampled for one in ended]):
            held = sum([one.num_sampled * (one.length - one.num_sampled / 2) for one in ended])
            self.row_tokens = held / steps
            for instance in self:
                instance.fit(self.row_tokens)

    def idle(self, instance: Instance) -> None:
        """Record that the dispatch of an instance will yield nothing more."""
        self.in_flight[instance.reserved] += instance.activity.charge(0)

    def under_way(self) -> tuple[int, int]:
        """Most tokens that may still arrive: from reserved and from preemptible instances."""
        return self.in_flight[True], self.in_flight[False]

    def begin_batch(self) -> None:
        """Reset the flag that the fleet has changed."""
        self.changed = False

    def came(self) -> None:
        """Note that the set of members has changed since the step began."""
        self.changed = True

    def count_loss(self, departure: Departure) -> None:
        """Count a preemptible instance that is gone."""
        self.lost += departure in LOST
        self.left += departure == "notice"
        self.losses += departure in LOST

    def started(self, seconds: float) -> None:
        """Record the time from an order to a ready instance."""
        known = self.start_seconds if self.start_seconds < math.inf else seconds
        self.start_seconds = known + NEWEST_START * (seconds - known)

    def leave(self, instance: Instance) -> None:
        self.idle(instance)
        del self.streams[instance.stream]
        self.index.leave(instance)
        self.changed |= instance.member

    def deadline(self, instance: Instance) -> Deadline:
        """The earliest deadline of a server.

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
        patience = activity.patience(manager.progress_seconds) + line
        gone = min(gone, activity.scores.deadline(patience))
        if not instance.held:
            return gone
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
        """Deadline after which its connection counts as lost.

        A server that receives nothing is found by `why_unreachable` at its next message, unless its
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
        """Lease on a good connection, in seconds."""
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
        """Schedule a check of an instance that holds new work or has another lease."""
        self.look_at(self.deadline(instance).at)

    def look_at(self, moment: float) -> None:
        """Schedule a check of all servers for that moment."""
        self.check_at = min(self.check_at, moment)

    def looked(self, again: float) -> None:
        """Note that all servers were checked; none is due before `again`."""
        self.check_at = again

    def why_unreachable(self, instance: Instance, renewal: Renew, now: float) -> str:
        """Process a renewal's news of the connection; returns why the server is lost, or "".

        A server that is merely silent is judged by its lease. This one is judged as its message
        arrives: by the next renewal it would be too late.
        """
        instance.lease.echoed(renewal.echo, now)
        renew = self._settings.manager.renew_seconds
        instance.lease.measured(renewal.round_trip, now, renew)
        self.watch(instance)
        patience = self.lease(instance) - renew
        silence = now - instance.lease.hears_at
        return f"unreachable for {silence:.2g} s: {RECEIVES_NOTHING}" if silence >= patience else ""

    def forgive(self, seconds: float, now: float) -> None:
        """Extend deadlines by a time in which this manager could hear nobody."""
        for instance in self:
            instance.forgive(seconds, now)

    def excuse(self, seconds: float, now: float) -> None:
        """Excuse servers from progress for a time in which messages to them were delayed here."""
        for instance in self:
            instance.excuse(seconds, now)

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does by more than passing time."""
        cost, banished = self.cost, len(self.banished)
        counts = self.joined, self.lost, self.left
        return *counts, self.names.numbers, banished, cost.level, cost.lumps

    def snapshot(self, now: float) -> dict[str, Any]:
        """Fields of `RunState` that are kept here."""
        return {
            "banished": dict(self.banished),
            "joined": self.joined,
            "lost": self.lost,
            "left": self.left,
            "numbers": self.names.numbers,
            "dollars": self.cost.total(now),
            "dollars_per_second": self.cost.level,
        }

    def restore(self, entry: RunState, now: float) -> None:
        """Restore from the journal. No server is connected yet."""
        self.joined, self.lost, self.left = entry.joined, entry.lost, entry.left
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

    def price_of(self, instance: Instance) -> float:
        """Dollars per hour; the trainer's own engines share one price equally."""
        if instance.reserved:
            return self._settings.fleet.reserved_price_per_hour / max(1, self.num_reserved)
        return self.index.price_of(instance.stream)

    def account(self, batches: Iterable[BatchRecord], starting: float, now: float) -> None:
        """Bring the time integrals up to date after something changed.

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
        """Charge for weights that left the learner's site."""
        self.cost.add(num_bytes / 1e9 * self._settings.fleet.egress_dollars_per_gb)
