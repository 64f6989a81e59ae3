"""Rollout servers as the manager knows them: states, leases, versions, time and money."""

import math
from collections import Counter
from collections.abc import Iterator

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.ledger import Rollout, Step
from rlboost_jax.manager.limits import (
    MAX_INSTANCES,
    REMARK_BURST,
    REMARKS_PER_SECOND,
    Bucket,
)
from rlboost_jax.manager.settings import Settings
from rlboost_jax.messages import BeginStep, Hello, InstanceStatus, Manifest, TokenBatch

MAX_PRICE = 100_000.0  # dollars per hour; more is a mistake, or meant to spoil the accounts


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
        self.leaving = False
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
        self.remarks = Bucket(REMARKS_PER_SECOND, REMARK_BURST)  # what is worth a line

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
        return True

    def loaded(self, version: int, digest: str) -> None:
        self.version, self.digest = version, digest

    def hold(self, rollout: Rollout) -> None:
        rollout.holder, rollout.releasing, rollout.yielded = self.name, False, False
        self.held[rollout.request_id] = rollout
        self.groups[rollout.prompt] += 1

    def let_go(self, request_id: int) -> Rollout | None:
        """No longer held here, whatever the reason; None if it never was."""
        rollout = self.held.pop(request_id, None)
        if rollout is None:
            return None
        self.num_releasing -= rollout.releasing
        self.groups[rollout.prompt] -= 1
        if not self.groups[rollout.prompt]:
            del self.groups[rollout.prompt]
        rollout.holder, rollout.previous, rollout.releasing = "", self.name, False
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


class Roster:
    """All instances with a living stream, in the order in which they joined."""

    def __init__(self, settings: Settings, now: float) -> None:
        self._settings = settings
        self.streams: dict[int, Instance] = {}
        self.fingerprint: str | None = None  # of the first reserved engine
        self.changed = False  # a member came or went since a step began
        self.joined = 0
        self.lost = 0
        self.cost = Integral(now)  # dollars
        self.ready = Integral(now)  # instance-seconds of preemptible ones with work to give
        self.check_at = math.inf  # no lease ends before
        self._numbers = 0

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
        if not hello.reserved and len(self.streams) >= MAX_INSTANCES:
            return f"there are {MAX_INSTANCES} instances already; leave some work to the learner"
        return self.mismatch(hello)

    def mismatch(self, hello: Hello) -> str:
        """Why its tokens could differ in bits from the reserved engine's; "" if they cannot."""
        if not self._settings.deterministic or self.fingerprint in (None, hello.fingerprint):
            return ""
        return (
            f"fingerprint {hello.fingerprint!r} is not {self.fingerprint!r} of the reserved "
            "engine; run the same program, or set deterministic = False"
        )

    def trusted(self, instance: Instance) -> bool:
        """Deterministic runs wait for the reserved engine's fingerprint."""
        return not self._settings.deterministic or instance.hello.fingerprint == self.fingerprint

    def join(self, stream: int, hello: Hello, now: float) -> Instance:
        instance = Instance(stream, self._name(hello), hello, now)
        self.streams[stream] = instance
        self.check_at = min(self.check_at, now + self._settings.manager.lease_seconds)
        if hello.reserved:
            self.fingerprint = self.fingerprint or hello.fingerprint
        return instance

    def retire(self, instance: Instance) -> None:
        """It goes soon: no more work for it."""
        self.changed |= instance.member
        instance.leaving = True

    def leave(self, instance: Instance) -> None:
        del self.streams[instance.stream]
        self.changed |= instance.member

    def expired(self, now: float) -> list[Instance]:
        """Those silent for `lease_seconds`; also finds when to look again."""
        if now < self.check_at:
            return []
        lease = self._settings.manager.lease_seconds
        late = [i for i in self if now >= i.heard_at + lease]
        self.check_at = min((i.heard_at + lease for i in self if i not in late), default=math.inf)
        return late

    def extend(self, seconds: float, now: float) -> None:
        for instance in self:
            instance.heard_at = min(now, instance.heard_at + seconds)

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
        prices = (i.hello.price_per_hour for i in self if not i.reserved)
        hourly = fleet.reserved_price_per_hour + sum(prices) + starting * fleet.price_per_hour
        self.cost.set(hourly / 3600, now)
        self.ready.set(sum(not i.reserved and i.ready_for(step) for i in self) if step else 0, now)

    def _name(self, hello: Hello) -> str:
        taken = {instance.name for instance in self}
        name = hello.instance
        while not name or name in taken:
            self._numbers += 1
            name = f"{hello.instance or 'server'}-{self._numbers}"
        return name
