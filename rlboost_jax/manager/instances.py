"""Rollout servers as the manager knows them: states, leases, versions, time and money.

A server is alive as long as it says so (its lease), hears us (what it echoes of our answers)
and gets on with the work it holds (its progress).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.index import Index, Pool
from rlboost_jax.manager.limits import REMARK_BURST, REMARKS_PER_SECOND, Bucket
from rlboost_jax.manager.rollouts import Rollout, Step
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.speeds import Span
from rlboost_jax.manager.usage import Usage
from rlboost_jax.messages import BeginStep, Hello, InstanceStatus, Manifest, TokenBatch

MAX_PRICE = 100_000.0  # dollars per hour; more is a mistake, or meant to spoil the accounts

MAX_BANISHED = 100  # the oldest may try again, and would be caught again
REMEMBERED_INSTANCES = 65536  # that joined last: a liar among them is known when it comes again
NEWEST_START = 0.3  # weight of the last start-up
SLOWER = 10  # times its slowest dispatch so far: what a server may take, overloaded


class Instance:
    """One stream of one rollout server.

    joining → pulling (a version was announced) → ready (it holds it) → leaving.
    """

    def __init__(self, stream: int, name: str, hello: Hello, now: float) -> None:
        self.stream = stream
        self.name = name
        self.hello = hello
        self.reserved = hello.reserved
        self.slots = hello.slots
        self.joined_at = self.heard_at = now
        self.hears_at = math.inf  # the newest stamp it echoed; inf: none
        self.leaving = False
        self.goes_at = math.inf  # with its machine, by its own notice
        self.draining = False  # what waited there was asked back
        self.leave_by = math.inf  # it was told to
        self.dismissed = False  # sent away for want of work
        self.leave_reason = ""
        self.notices = 0
        self.announced: Manifest | None = None
        self.version: int | None = None
        self.digest = ""  # of the parameters it holds; "" once others were announced
        self.worked = False
        self.held: dict[int, Rollout] = {}  # by request id, oldest placement first
        self.groups: Counter[int] = Counter()  # rollouts held per prompt
        self.num_releasing = 0
        self.next_sequence = 0
        self.in_flight = 0
        self.running = 0
        self.waiting = 0
        self.tokens = 0  # taken into the ledger
        self.programs_compiled = 0
        self.batch_at = math.inf  # when the dispatch now running began
        self.slowest = 0.0  # dispatch so far, in seconds
        self.usage = Usage()  # since it was recorded last
        self.progress_at = now  # of the last token or answer, or since when it holds work
        self.span: Span | None = None  # since all its tokens were known; None: it holds nothing
        self.remarks = Bucket(REMARKS_PER_SECOND, REMARK_BURST)  # what is worth a line
        # What the index knows of it; None: it has left.
        self.index: Index | None = None
        self.order = 0  # of joining
        self.pool: Pool | None = None
        self.noted_releasing, self.noted_working = 0, False

    @property
    def state(self) -> str:
        if self.leaving:
            return "leaving"
        if self.reserved:
            return "joining" if self.version is None else "ready"
        if self.announced is None:
            return "joining"
        return "ready" if self.holds(self.announced) else "pulling"

    @property
    def asked_at(self) -> float:
        """Since when it owes an answer to a release; inf: it owes none."""
        if not self.num_releasing:
            return math.inf
        return min(rollout.asked_at for rollout in self.held.values())

    @property
    def kind(self) -> tuple[str, str, int]:
        """Instances of one kind share a throughput profile."""
        return self.hello.device, self.hello.fingerprint, self.slots

    @property
    def member(self) -> bool:
        """Whether Algorithm 1 counts it: a new version's pull is no absence."""
        return not self.reserved and not self.leaving and self.version is not None

    def contradiction(self, batch: TokenBatch, slot_tokens: int) -> str:
        """What a batch says that no engine with these slots can mean; "" if nothing.

        What is in flight is charged when the server vanishes, so it must be possible.
        """
        whole = self.slots * slot_tokens
        limits = {"in_flight": whole, "prefilled_again": whole, "running": self.slots}
        for name, most in limits.items():
            if (value := getattr(batch, name)) > most:
                return f"{name} = {value} where {self.slots} slots allow {most}"
        return ""

    def ready_for(self, step: Step) -> bool:
        """Whether it holds exactly the parameters of that step."""
        return self.state == "ready" and self.holds(step.begin)

    def announce(self, manifest: Manifest) -> bool:
        """Note a new version; False if it holds just that already.

        Whatever was announced is taken for on its way into the engine: what the server holds
        is known again when it says so.
        """
        if self.state == "ready" and self.holds(manifest):
            self.announced = manifest
            return False
        self.announced, self.digest = manifest, ""
        self._state_changed()
        return True

    def loaded(self, version: int, digest: str) -> None:
        self.version, self.digest = version, digest
        self._state_changed()

    def leave_soon(self) -> None:
        """No more work for it."""
        self.leaving = True
        self._state_changed()

    def asking(self, count: int) -> None:
        """So many more rollouts are asked back."""
        self.num_releasing += count
        self._held_changed()

    def hold(self, rollout: Rollout, now: float) -> None:
        if not self.held:
            self.progress_at, self.span = now, Span(now)
        rollout.holder, rollout.asked_at, rollout.yielded = self.name, math.inf, False
        self.held[rollout.request_id] = rollout
        self.groups[rollout.prompt] += 1
        self._held_changed()

    def let_go(self, request_id: int) -> Rollout | None:
        """No longer held here, whatever the reason; None if it never was."""
        rollout = self.held.pop(request_id, None)
        if rollout is None:
            return None
        self.num_releasing -= rollout.releasing
        self.groups[rollout.prompt] -= 1
        if not self.groups[rollout.prompt]:
            del self.groups[rollout.prompt]
        rollout.holder, rollout.previous, rollout.asked_at = "", self.name, math.inf
        if not self.held:
            self.span = None
        self._held_changed()
        return rollout

    def status(self, now: float) -> InstanceStatus:
        return InstanceStatus(
            instance=self.name,
            reserved=self.reserved,
            state=self.state,
            version=-1 if self.version is None else self.version,
            running=self.running,
            waiting=self.waiting,
            tokens=self.tokens,
            price_per_hour=self.hello.price_per_hour,
            seconds=now - self.joined_at,
        )

    def holds(self, named: Manifest | BeginStep) -> bool:
        """Whether the parameters it has are just those."""
        return self.version == named.version and self.digest == named.params_digest

    def _held_changed(self) -> None:
        if self.index is not None:
            self.index.held_changed(self)

    def _state_changed(self) -> None:
        if self.index is not None:
            self.index.state_changed(self)


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
        self.losses = 0.0  # of those, the ones that the market took
        self.alive = Integral(now)  # instance-seconds of preemptible ones
        self.start_seconds = math.inf  # from an order to readiness, lately; inf: not known
        self.in_flight = {False: 0, True: 0}  # reserved? → most tokens that may still come
        self.cost = Integral(now)  # dollars
        self.ready = Integral(now)  # instance-seconds of preemptible ones with work to give
        self.own: set[str] = set()  # names that the trainer's engines have had
        self.banished: dict[str, str] = {}  # who may not join again (`_identity`), and why
        self._identities: dict[str, str] = {}  # name → who that was
        self.check_at = math.inf  # no server is due for anything before
        self.now = now  # of the event being handled
        self.numbers = 0  # in names given out

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
        if reason := self.banished.get(_identity(hello)):
            return f"sent away before: {reason}; look for a fault of that host, then start it anew"
        return ""

    def mismatch(self, hello: Hello) -> str:
        """Why its tokens could differ in bits from the reserved engine's; "" if they cannot."""
        if not self._settings.deterministic or self.fingerprint in (None, hello.fingerprint):
            return ""
        return (
            f"fingerprint {hello.fingerprint!r} is not {self.fingerprint!r} of the reserved "
            "engine; run the same program, or set deterministic = False"
        )

    @property
    def trusting(self) -> bool:
        """Deterministic runs wait for the reserved engine's fingerprint. Once that is known,
        nobody with another one is here."""
        return not self._settings.deterministic or self.fingerprint is not None

    def pool(self, step: Step) -> Pool:
        """Preemptible instances that are ready for a step."""
        return self.index.pool(step.begin.version, step.begin.params_digest)

    def join(self, stream: int, hello: Hello, now: float) -> Instance:
        instance = Instance(stream, self._name(hello), hello, now)
        self.streams[stream] = instance
        self.index.join(instance)
        self.check_at = min(self.check_at, now + self._settings.manager.lease_seconds)
        if hello.reserved:
            self.fingerprint = self.fingerprint or hello.fingerprint
            self.own.add(instance.name)
        self._identities.pop(instance.name, None)
        self._identities[instance.name] = _identity(hello)
        if len(self._identities) > REMEMBERED_INSTANCES:
            del self._identities[next(iter(self._identities))]
        return instance

    def banish(self, name: str, reason: str) -> None:
        """Let whoever had that name not join again: its next work would go the same way."""
        if name in self._identities:
            self.banished.setdefault(self._identities[name], reason)
            if len(self.banished) > MAX_BANISHED:
                del self.banished[next(iter(self.banished))]

    def speaks(self, name: str, is_it: Callable[[Hello], bool]) -> bool:
        """Whether a living stream is that of the provider's server of that name."""
        return name in self.index.claims and any(is_it(i.hello) for i in self)

    def same_process(self, name: str) -> list[Instance]:
        """The living streams of whoever had that name, whatever they are called now."""
        who = self._identities.get(name)
        return [i for i in self if not i.reserved and _identity(i.hello) == who]

    def retire(self, instance: Instance) -> None:
        """It goes soon: no more work for it."""
        self.changed |= instance.member
        instance.leave_soon()

    def charge(self, instance: Instance, tokens: int) -> None:
        """Note the most that the dispatch which an instance has begun can yield."""
        self.in_flight[instance.reserved] += tokens - instance.in_flight
        instance.in_flight = tokens

    def started(self, seconds: float) -> None:
        """An instance was ready so long after it was ordered."""
        known = self.start_seconds if self.start_seconds < math.inf else seconds
        self.start_seconds = known + NEWEST_START * (seconds - known)

    def leave(self, instance: Instance) -> None:
        self.charge(instance, 0)
        del self.streams[instance.stream]
        self.index.leave(instance)
        self.changed |= instance.member

    def deadline(self, instance: Instance) -> tuple[float, str, bool]:
        """When a server counts as lost if nothing changes, why, and whether it is stuck then.

        What was slow before may be ten times as slow under load; but a server cannot earn more
        than ten times `progress_seconds` by pretending to be.
        """
        settings = self._settings.manager
        lease, least = settings.lease_seconds, settings.progress_seconds
        silent = instance.heard_at + lease, f"silent for {lease:g} s", False
        if not instance.held:
            return silent
        patience = max(least, SLOWER * min(instance.slowest, least))
        stuck = instance.progress_at + patience, f"no progress for {patience:g} s", True
        owing = instance.asked_at + patience, f"gave nothing back for {patience:g} s", True
        return min(silent, stuck, owing)

    def watch(self, instance: Instance) -> None:
        """It holds work from now on: look at it in time."""
        self.check_at = min(self.check_at, self.deadline(instance)[0])

    def deaf(self, instance: Instance, echo: float, now: float) -> str:
        """Take in what a renewal echoes. Returns why its server counts as lost, or "".

        Whoever is merely silent is judged by its lease, so this one is judged as it speaks: by
        the next renewal it would be too late.
        """
        settings = self._settings.manager
        if 0 < echo <= now:
            known = instance.hears_at if instance.hears_at < math.inf else echo
            instance.hears_at = max(known, echo)
        patience = settings.lease_seconds - settings.renew_seconds
        silence = now - instance.hears_at
        return f"deaf for {silence:.2g} s: it hears nothing of us" if silence >= patience else ""

    def extend(self, seconds: float, now: float) -> None:
        """We heard nobody for so long, by our own fault. Machines go when they go, though."""
        for instance in self:
            instance.heard_at = min(now, instance.heard_at + seconds)
            instance.progress_at = min(now, instance.progress_at + seconds)
            for rollout in instance.held.values():
                if rollout.releasing:
                    rollout.asked_at = min(now, rollout.asked_at + seconds)
            if instance.hears_at < math.inf:
                instance.hears_at = min(now, instance.hears_at + seconds)
            if instance.batch_at < math.inf:
                instance.batch_at = min(now, instance.batch_at + seconds)
            instance.leave_by += seconds

    @property
    def members(self) -> int:
        return sum(instance.member for instance in self)

    @property
    def num_reserved(self) -> int:
        return sum(instance.reserved for instance in self)

    def account(self, step: Step | None, starting: int, now: float) -> None:
        """Bring the integrals up to date after something changed.

        Args:
            starting: servers that the provider has started and that have not joined yet;
                they are paid for too.
        """
        fleet = self._settings.fleet
        prices = sum(price * count for price, count in self.index.prices.items())
        hourly = fleet.reserved_price_per_hour + prices + starting * fleet.price_per_hour
        self.cost.set(hourly / 3600, now)
        self.alive.set(sum(self.index.prices.values()), now)
        self.ready.set(len(self.pool(step).instances) if step else 0, now)

    def _name(self, hello: Hello) -> str:
        """One that nobody else has had: tokens are filed under it."""
        taken = self.index.names
        name, who = hello.instance, _identity(hello)
        while not name or name in taken or self._identities.get(name, who) != who:
            self.numbers += 1
            name = f"{hello.instance or 'server'}-{self.numbers}"
        return name


def _identity(hello: Hello) -> str:
    """A process, as far as it can be told from another by what it says."""
    return f"{hello.host}/{hello.pid}/{hello.process}/{hello.instance}"
