"""What goes wrong in a simulated run, and when: a schedule is data, so it can be cut down.

Everything else that chance decides in the run (latencies, speeds, sizes of dispatches) follows
from the schedule's seed as well.
"""

import functools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import msgspec

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Event,
    FromServer,
    MachineAdded,
    MachineRemoved,
    Priced,
    Stalled,
)
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.deadline import LOADING_SECONDS
from rlboost_jax.providers.base import Exited, Granted, Refused, Started, Withdrawn
from rlboost_jax.settings.fleet_config import Sizing
from rlboost_jax.settings.manager_config import Routing, Window
from rlboost_jax.settings.pool_config import PoolConfig
from tests.computing import limited
from tests.manager.fakes import ROUTING, settings
from tests.schedules.disk import Disk, Platter
from tests.schedules.drafts import Proposals
from tests.schedules.environment import HABITS, Rules
from tests.schedules.invariants import check, check_drafts, check_leases, check_whole
from tests.schedules.lies import Lie
from tests.schedules.lines import line_of
from tests.schedules.server import Server
from tests.schedules.trainer import Trainer
from tests.schedules.world import World

FAULTS_END = 4.0  # seconds
LIMIT = 36.0  # for all that was begun to be done, after the last fault
SLOW_LINES = 2.0  # times that limit, where one server may be left, on a line with 300 ms
NUM_BATCHES = 2  # and as many more as are begun ahead, with one that follows them
PROGRESS_SECONDS, DRAIN_SECONDS = 3.0, 2.5
MEAN_GAP = 0.3  # seconds between faults
CPU_SECONDS = 20.0  # for a schedule, which takes 0.01 s
SHARES = 6  # times that somebody else wants a server's device, of a schedule with shared servers
NEIGHBOURS = 3  # dispatches of another version, of a schedule with a lag
GIVEN_TOKENS = 4  # that a slot has room for, of a schedule with turns
HABITUAL = 2  # questions that meet each habit of an environment, of a schedule with turns
POWER_CUTS = 2  # of a schedule with any
LINES_SHARE, LINES, WORSE = 0.1, 8, 2  # schedules with lines; lines of one; that become others
LINE_SECONDS = {"lease_seconds": 1.5, "longest_lease_seconds": 8.0, "renew_seconds": 0.3}
MISSCORES = 2  # servers that say wrong scores, of a schedule with teachers
PROPOSALS = tuple(f"{kind.value}_drafts" for kind in Proposals if kind is not Proposals.LIKELY)
DISMISSALS = 4  # instances dismissed, of a schedule with policies other than the paper's


@dataclass(frozen=True)
class Fault:
    """
    Attributes:
        target: a number that chooses among what it may hit.
        amount: seconds, bytes or a share, in [0, 1): how much of what its kind allows.
    """

    at: float
    kind: str
    target: int
    amount: float


@dataclass(frozen=True)
class Schedule:
    seed: int
    seeding: bool  # there is a reserved engine
    extends: bool  # steps grow while they are worked on
    servers: int  # preemptible, from the start
    machines: int
    faults: tuple[Fault, ...]
    lag: int = 0
    turns: int = 1  # that a response may have; after each but the last it is parked
    lines: bool = False  # leases follow lines, which faults at 0.0 s give to servers by number
    several: bool = False  # a sequence may be followed by another
    turn_tokens: int = 0  # of a turn; 0: no limit of its own
    scores: bool = False  # a teacher scores the responses
    drafts: bool = False  # servers draft, and one response of each prompt leads
    peers: bool = False  # servers fetch weights from each other

    @property
    def num_batches(self) -> int:
        return NUM_BATCHES + self.lag + (self.lag > 0)

    def without(self, left_out: Sequence[Fault]) -> "Schedule":
        return replace(self, faults=tuple(f for f in self.faults if f not in left_out))


def schedule_of(seed: int, *, drafts: bool = False, peers: bool = False) -> Schedule:
    """The schedule that a seed stands for.

    Args:
        drafts: servers draft; else they do in one schedule of eight.
        peers: servers fetch weights from each other; else they do in one schedule of three.
    """
    rng = random.Random(seed)
    seeding = seed // 3 % 10 > 0  # with all kinds of policies
    faults: list[Fault] = []
    at = rng.expovariate(1 / MEAN_GAP)
    kinds, weights = list(KINDS), [weight for _, weight in KINDS.values()]
    while at < FAULTS_END:
        kind = rng.choices(kinds, weights)[0]
        faults.append(Fault(round(at, 3), kind, rng.randrange(8), round(rng.random(), 3)))
        at += rng.expovariate(1 / MEAN_GAP)
    if seed % 4 == 3:  # with policies that send servers home
        apart = random.Random(f"dismissed {seed}")
        faults += [
            Fault(round(apart.uniform(0.5, FAULTS_END), 3), "dismiss", apart.randrange(8), 0.0)
            for _ in range(DISMISSALS)
        ]
    if seed % 5 == 2:
        apart = random.Random(f"provider {seed}")
        for kind in ("refuse", "refuse", "withdraw", "withdraw"):
            moment, amount = round(apart.uniform(0.0, FAULTS_END), 3), round(apart.random(), 3)
            faults.append(Fault(moment, kind, apart.randrange(8), amount))
    if seed % 5 == 4:
        apart = random.Random(f"false provider {seed}")
        for kind in ("misreport", "misreport", "delay", "forget", "double"):
            moment, amount = round(apart.uniform(0.0, FAULTS_END), 3), round(apart.random(), 3)
            faults.append(Fault(moment, kind, apart.randrange(8), amount))
    if seed % 7 == 3:
        apart = random.Random(f"shared {seed}")
        for _ in range(SHARES):
            moment, amount = round(apart.uniform(0.2, FAULTS_END), 3), round(apart.random(), 3)
            faults.append(Fault(moment, "share", apart.randrange(8), amount))
    if seed % 7 == 5:
        apart = random.Random(f"bounced {seed}")
        moment = round(apart.uniform(0.0, FAULTS_END), 3)
        faults.append(Fault(moment, "bounce", apart.randrange(8), 0.0))
    if seed % 3 == 1:
        apart = random.Random(f"power {seed}")
        for _ in range(POWER_CUTS):
            moment, amount = round(apart.uniform(0.2, FAULTS_END), 3), round(apart.random(), 3)
            faults.append(Fault(moment, "power", apart.randrange(8), amount))
    servers = 1 if not seeding else rng.randint(0, 1)
    extends = seed % 4 == 1
    machines = rng.randint(0, 2)
    apart = random.Random(f"lag {seed}")
    lag = apart.choice((0, 0, 1, 2))
    if lag:
        faults += [
            Fault(round(apart.uniform(0.2, FAULTS_END), 3), "neighbour", apart.randrange(8), 0.0)
            for _ in range(NEIGHBOURS)
        ]
    apart = random.Random(f"turns {seed}")
    turns = apart.choice((1, 1, 1, 3))
    several = turns > 1 and apart.random() < 0.6
    turn_tokens = apart.choice((0, 0, 5)) if turns > 1 else 0
    if turns > 1:
        turns += 2 * several
        faults += _environments(apart)
    apart = random.Random(f"scores {seed}")
    scores = seeding and seed % 4 != 3 and apart.random() < 0.25
    if scores:
        faults += [
            Fault(round(apart.uniform(0.0, FAULTS_END), 3), "misscore", apart.randrange(8), 0.0)
            for _ in range(MISSCORES)
        ]
    lines = _lines(seed)
    faults += lines
    drafts = drafts or seed % 8 == 2
    if drafts:
        apart = random.Random(f"drafts {seed}")
        for kind in PROPOSALS:
            moment = round(apart.uniform(0.0, FAULTS_END), 3)
            faults.append(Fault(moment, kind, apart.randrange(8), 0.0))
    return Schedule(
        seed,
        seeding,
        extends,
        servers,
        machines,
        tuple(faults),
        lag,
        turns,
        bool(lines),
        several,
        turn_tokens,
        scores,
        drafts,
        peers or seed // 4 % 3 == 0,
    )


def _environments(apart: random.Random) -> list[Fault]:
    """What those of one schedule do."""
    kinds = [*HABITS, "die"] * HABITUAL
    return [
        Fault(round(apart.uniform(0.0, FAULTS_END), 3), f"{kind}_environment", 0, 0.0)
        for kind in kinds
    ]


def _lines(seed: int) -> list[Fault]:
    """Give one schedule in ten lines for most servers from the start, and others later."""
    apart = random.Random(f"lines {seed}")
    if apart.random() >= LINES_SHARE:
        return []
    faults = [
        Fault(0.0, "line", number, round(apart.random(), 3))
        for number in range(LINES)
        if apart.random() < 0.8
    ]
    for _ in range(WORSE):
        moment, amount = round(apart.uniform(0.2, FAULTS_END), 3), round(apart.random(), 3)
        faults.append(Fault(moment, "line", apart.randrange(8), amount))
    return faults


def policies(seed: int, num_batches: int) -> dict[str, Any]:
    """A quarter of all schedules have routes, and a quarter other policies than the paper's. Of
    those with providers that refuse or lie a third have several pools."""
    found = _policies(seed, num_batches)
    if seed % 5 in (2, 4) and seed % 3 == 0:
        found["fleet__pools"] = POOLS[: 2 + seed // 15 % 2]
    return found


def _policies(seed: int, num_batches: int) -> dict[str, Any]:
    if seed % 4 == 1:
        return {"routing": ROUTING}
    if seed % 4 == 3:
        return {
            "manager__window": get_args(Window)[1],
            "manager__routing": get_args(Routing)[1],
            "manager__longest_first": seed // 4 % 2 == 1,
            "fleet__sizing": get_args(Sizing)[seed // 4 % 3],
            "fleet__merge_tail": seed // 4 % 4 > 0,
            "num_steps": num_batches * (seed // 16 % 2),  # 0: which step is the last is not known
        }
    return {}


POOLS = (
    PoolConfig(name="near", max_instances=1, price_per_hour=1.0),
    PoolConfig(name="far-1", max_instances=2, price_per_hour=2.0),
    PoolConfig(name="far", max_instances=1, price_per_hour=3.0),
)


@functools.cache
def settings_of(seeding: bool, **changes: Any) -> Settings:
    return settings(
        deterministic=seeding,
        manager__progress_seconds=PROGRESS_SECONDS,
        manager__drain_seconds=DRAIN_SECONDS,
        **changes,
    )


class Run:
    """One schedule, carried out.

    Args:
        calm_at: seconds after which nothing is broken any more; None: when `calm` is called.
        disk: opens the manager's journal.
    """

    def __init__(
        self,
        schedule: Schedule,
        calm_at: float | None = FAULTS_END,
        disk: Callable[[Platter, str], Disk] = Disk,
    ) -> None:
        self.schedule = schedule
        self._next: dict[str, float] = {}  # what happens to the next frame of a server: amount
        others = policies(schedule.seed, schedule.num_batches)
        others |= {"lag": schedule.lag, "peers": schedule.peers}
        if schedule.turns > 1:
            others["slot_tokens"] = settings_of(schedule.seeding).slot_tokens + GIVEN_TOKENS
        if schedule.lines:
            others |= {f"manager__{name}": value for name, value in LINE_SECONDS.items()}
        if schedule.drafts:
            others["siblings_follow"] = True
        chosen = settings_of(schedule.seeding, **others)
        self.world = world = World(chosen, schedule.seed, check, check_leases, disk)
        world.drafts = schedule.drafts
        world.tamper = self._tamper
        world.lines = {f.target: f.amount for f in schedule.faults if _from_the_start(f)}
        Trainer(
            world,
            schedule.num_batches,
            lag=schedule.lag,
            rules=Rules(schedule.turns, schedule.turn_tokens, schedule.several, chosen.slot_tokens),
            seeding=schedule.seeding,
            extends=schedule.extends,
            scores=schedule.scores,
        )
        world.trainer.start()
        for number in range(schedule.machines):
            world.machines.add(f"machine-{number}")
            world.deliver(MachineAdded(f"machine-{number}"))
        for _ in range(schedule.servers):
            Server(world).connect()
        apart = random.Random(f"prices {schedule.seed}")
        for pool in chosen.fleet.pools:
            price = Priced(pool.name, round(apart.uniform(0.0, 5.0), 2))
            world.later(apart.uniform(0.0, FAULTS_END), lambda price=price: world.deliver(price))  # type: ignore[misc]
        for fault in schedule.faults:
            if not _from_the_start(fault):
                world.later(fault.at, self._doing(fault))
        self._calm_at = calm_at
        if calm_at is not None:
            world.later(calm_at, self.calm)

    def finish(self) -> None:
        """Raises AssertionError or whatever the manager raised."""
        calm_at = self.world.now if self._calm_at is None else self._calm_at
        limit = calm_at + LIMIT * (SLOW_LINES if self.schedule.lines else 1.0)
        # With a lag, all may wait for what one is to load that hangs, and then for the next one.
        limit += LOADING_SECONDS * sum(fault.kind == "wedge" for fault in self.schedule.faults)
        try:
            self.world.run(lambda: self.world.exit is not None, limit)
            check_whole(self.world)
            assert self.world.exit is not None and self.world.exit.code == 0
            batches = [report.batch for report in self.world.trainer.reports]
            assert set(batches) == set(range(self.schedule.num_batches))
            check_drafts(self.world)
            met = self.world.trainer.environments.seen
            self.world.seen |= {f"{habit}_environment" for habit in met}
        finally:
            self.world.close()

    def _doing(self, fault: Fault) -> Callable[[], None]:
        def do() -> None:
            if KINDS[fault.kind][0](self, fault):
                self.world.seen.add(fault.kind)

        return do

    def calm(self) -> None:
        """The faults are over; somebody must be there to work."""
        self._next.clear()
        self.world.trainer.environments.habits.clear()
        self.world.journal.full = False
        self.world.refusals = self.world.forgotten = self.world.doubled = 0
        self.world.delayed.clear()
        for server in self.world.servers:
            server.thaw()
            server.slow = 1.0
        if not self.world.trainer.alive:
            self.world.trainer.start()
        if not self.schedule.seeding:
            Server(self.world).connect()
        if self.schedule.scores:
            self._staff_teacher()

    def _staff_teacher(self) -> None:
        """Two servers that stay can hold the teacher."""
        for _ in range(2):
            server = Server(self.world)
            server.teaches = True
            server.connect()

    def _servers(self) -> list[Server]:
        return [s for s in self.world.servers if s.alive and not s.reserved and s.stream]

    def _server(self, fault: Fault) -> Server | None:
        living = self._servers()
        if not living:
            return None
        server = living[fault.target % len(living)]
        server.harmed = True
        return server

    # Faults: each returns whether it came about

    def kill(self, fault: Fault) -> bool:
        server = self._server(fault)
        if server is not None:
            server.kill()
        return server is not None

    def term(self, fault: Fault) -> bool:
        server = self._server(fault)
        if server is not None:
            server.notice()
        return server is not None

    def share(self, fault: Fault) -> bool:
        """Somebody else wants a part of a server's device, for a while; that harms nobody."""
        living = self._servers()
        if not living:
            return False
        server = living[fault.target % len(living)]
        server.share(int(3 * fault.amount), frozen=fault.target % 2 == 0)
        self.world.later(0.2 + fault.amount, lambda: server.share(server.most_slots))
        return True

    def freeze(self, fault: Fault) -> bool:
        """For less or more than a lease."""
        server = self._server(fault)
        if server is None or server.frozen:
            return False
        server.freeze()
        self.world.later(5.0 * fault.amount, server.thaw)
        return True

    def notice(self, fault: Fault) -> bool:
        """Its machine goes, it says: then, earlier, or never. Some never leave."""
        server = self._server(fault)
        if server is None:
            return False
        seconds = 5.0 * fault.amount
        server.announce_end(seconds)
        if fault.target % 4 == 3:
            server.stays = True
        elif fault.target % 4 < 2:
            self.world.later(seconds * (1.0, 0.5)[fault.target % 2], server.kill)
        return True

    def wedge(self, fault: Fault) -> bool:
        """Its device hangs; its lease goes on."""
        server = self._server(fault)
        if server is not None:
            server.stalled = True
        return server is not None

    def bounce(self, fault: Fault) -> bool:
        """It gives back whatever it is given, and nothing else."""
        server = self._server(fault)
        if server is not None:
            server.bounces = True
        return server is not None

    def slow(self, fault: Fault) -> bool:
        server = self._server(fault)
        if server is not None:
            server.slow = 10.0
        return server is not None

    def cut(self, fault: Fault) -> bool:
        """The connection is gone; one half of them neither side notices."""
        server = self._server(fault)
        if server is not None:
            self.world.cut(server.stream, noticed=fault.amount < 0.5)
        return server is not None

    def partition(self, fault: Fault) -> bool:
        """Nothing arrives for a while: in one direction, or in both."""
        server = self._server(fault)
        if server is None:
            return False
        until = self.world.now + 4.0 * fault.amount
        for up in ((True,), (False,), (True, False))[fault.target % 3]:
            self.world.hold_up(server.stream, until, up=up)
        return True

    def line(self, fault: Fault) -> bool:
        """Its line becomes another: what was known of it no longer holds."""
        server = self._server(fault) if self.world.measured else None
        if server is None:
            return False
        server.line = line_of(fault.amount, self.schedule.seed, fault.target + LINES)
        return True

    def join(self, fault: Fault) -> bool:
        if len(self._servers()) >= 4:
            return False
        Server(self.world).connect()
        return True

    def spoil_weights(self, fault: Fault) -> bool:
        server = self._server(fault)
        if server is not None:
            server.bad_pulls = 1 + int(3 * fault.amount)
        return server is not None

    def trainer(self, fault: Fault) -> bool:
        trainer = self.world.trainer
        if not trainer.alive or trainer.done:
            return False
        trainer.crash(same_bits=fault.target % 2 == 0)
        self.world.later(2.0 * fault.amount, lambda: None if trainer.alive else trainer.start())
        return True

    def cut_trainer(self, fault: Fault) -> bool:
        trainer = self.world.trainer
        if not trainer.alive or not trainer.stream:
            return False
        self.world.cut(trainer.stream, noticed=True)
        return True

    def manager(self, fault: Fault) -> bool:
        """Killed; sometimes it loses the end of its journal too, or its clock begins anew."""
        if self.world.manager is None:
            return False
        amount = int(400 * fault.amount)
        damages = ({}, {"torn": amount}, {"flipped": amount}, {"ahead": amount - 200.0})
        damage = damages[max(0, fault.target - 4)]
        self.world.crash_manager(2.0 * fault.amount, **damage)  # type: ignore[arg-type]
        return True

    def power(self, fault: Fault) -> bool:
        """The host of trainer and manager loses its power: what was not synced goes in part, now
        and then a sector is where it does not belong, and the clock begins anew."""
        trainer = self.world.trainer
        if self.world.manager is None or not trainer.alive or trainer.done:
            return False
        trainer.crash(same_bits=True)
        self.world.crash_manager(
            2.0 * fault.amount,
            ahead=400.0 * fault.amount - 200.0,
            power=True,
            misdirected=fault.target == 7,
        )
        self.world.later(4.0 * fault.amount, lambda: None if trainer.alive else trainer.start())
        return True

    def stall(self, fault: Fault) -> bool:
        self.world.stall_manager(5.0 * fault.amount)
        return True

    def fill_disk(self, fault: Fault) -> bool:
        self.world.journal.full = True

        def free() -> None:
            self.world.journal.full = False

        self.world.later(2.0 * fault.amount, free)
        return True

    def lie(self, fault: Fault) -> bool:
        """Make a server choose tokens itself from now on, in the way that `amount` says."""
        server = self._server(fault)
        if server is not None:
            server.lie = tuple(Lie)[min(int(fault.amount * len(Lie)), len(Lie) - 1)]
            server.ever_lied = self.world.lied = True
        return server is not None

    def misscore(self, fault: Fault) -> bool:
        """Have it say scores of its own from now on, which no other liar says."""
        server = self._server(fault)
        if server is not None:
            server.misscores = server.ever_lied = True
        return server is not None

    def propose(self, fault: Fault) -> bool:
        """It drafts from texts of the version before, from those of other prompts, or each token
        twice; that harms nobody."""
        living = self._servers()
        if living and self.world.drafts:
            kind = Proposals(fault.kind.removesuffix("_drafts"))
            living[fault.target % len(living)].proposals = kind
        return bool(living) and self.world.drafts

    def neighbour(self, fault: Fault) -> bool:
        """For a dispatch or two it samples from the version before or after its own, and says
        so."""
        server = self._server(fault)
        if server is not None:
            server.elsewhere = 1 + fault.target % 2
        return server is not None

    def take(self, fault: Fault) -> bool:
        self.world.deliver(MachineRemoved("", fault.target % 2 == 0, fault.amount))
        return True

    def lend(self, fault: Fault) -> bool:
        self.world.deliver(MachineAdded(""))
        return True

    def dismiss(self, fault: Fault) -> bool:
        """The manager sends one of the provider's home for want of work, at whatever moment."""
        manager = self.world.manager
        if manager is None or self.world.exit is not None:
            return False
        fleet = manager.view.fleet
        instances = [i for i in manager.view.roster if fleet.server_of(i.hello) is not None]
        if not instances:
            return False
        instance = instances[fault.target % len(instances)]
        manager.components.servers.dismiss(instance, self.world.clock())
        self.world.deliver(Stalled(0.0))  # of all events the one that changes least
        return True

    def refuse(self, fault: Fault) -> bool:
        """The provider has no machine for what it is asked for next."""
        self.world.refusals += 1
        return True

    def withdraw(self, fault: Fault) -> bool:
        """The owner of a server's machine takes it back, the provider says; and does then or
        before, or later. It may not have joined yet."""
        granted = [s for s in self.world.servers if s.alive and s.granted]
        if not granted:
            return False
        server = granted[fault.target % len(granted)]
        seconds = 3.0 * fault.amount
        self.world.deliver(Withdrawn(server.name, server.nonce, seconds, "the market"))
        self.world.later(seconds * (1.0, 0.5, 1.5)[fault.target % 3], server.kill)
        return True

    def misreport(self, fault: Fault) -> bool:
        """The provider says what is not so: that a server has ended, which goes on; what it has
        said before; or something of an instance that nobody asked for."""
        granted = [s for s in self.world.servers if s.alive and s.granted]
        nobody = Exited("local-77", "nobody's", "a lie"), Granted("local-77", "nobody's")
        said: tuple[Event, ...] = nobody
        if granted and fault.target % 4:
            server = granted[fault.target % len(granted)]
            tag = server.name, server.nonce
            said = (
                (Exited(*tag, "a lie"),),
                (Granted(*tag), Started(*tag)),
                (Refused(*tag, "a lie"),),
            )[fault.target % 4 - 1]
        for event in said:
            self.world.deliver(event)
        return True

    def delay(self, fault: Fault) -> bool:
        """What is asked for next comes later than anybody waits for it."""
        self.world.delayed.append(6.0 * fault.amount)
        return True

    def forget(self, fault: Fault) -> bool:
        """Lose the next request for a server, or the end of one that is there."""
        granted = [s for s in self.world.servers if s.alive and s.granted]
        if granted and fault.target % 2:
            granted[fault.target % len(granted)].granted = False
        else:
            self.world.forgotten += 1
        return True

    def double(self, fault: Fault) -> bool:
        """Two servers come of what is asked for next, and both say that they are it."""
        self.world.doubled += 1
        return True

    def twice(self, fault: Fault) -> bool:
        return self._on_frame("twice", fault)

    def late(self, fault: Fault) -> bool:
        return self._on_frame("late", fault)

    def lose(self, fault: Fault) -> bool:
        return self._on_frame("lose", fault)

    def break_frame(self, fault: Fault) -> bool:
        return self._on_frame("break", fault)

    def die_environment(self, fault: Fault) -> bool:
        """All processes of environments are killed, with what they were about to say."""
        trainer = self.world.trainer
        return trainer.alive and trainer.environments.die()

    def _next_question(self, fault: Fault) -> bool:
        """It meets a habit of its environment's; which came about is seen at the end."""
        self.world.trainer.environments.habits.append(fault.kind.removesuffix("_environment"))
        return False

    def _on_frame(self, what: str, fault: Fault) -> bool:
        self._next[what] = fault.amount
        return True

    def _tamper(self, server: Server, event: Event) -> Sequence[tuple[float, Event]]:
        """What becomes of a frame: (delay, event) each."""
        if not self._next or server.reserved or not isinstance(event, FromServer):
            return ((0.0, event),)
        message = event.message
        what = next(iter(self._next))
        if what == "lose" and not isinstance(message, LOSABLE):
            return ((0.0, event),)  # its loss would be that of the stream
        if what == "break" and not isinstance(message, m.TokenBatch):
            return ((0.0, event),)
        amount = self._next.pop(what)
        server.harmed = True
        match what, message:
            case "twice", m.Ready():  # the last word on versions counts, and streams keep order
                return (0.0, event), (0.0, event)
            case "late", m.Ready():
                return ((0.0, event),)
            case "twice", _:
                return (0.0, event), (amount, event)
            case "late", _:
                return ((0.001 + amount, event),)
            case "lose", _:
                return ()
            case _, m.TokenBatch(tokens=tokens):
                broken = msgspec.structs.replace(message, tokens=tokens + b"\0")
                return ((0.0, FromServer(event.stream, broken)),)
        raise AssertionError(what)


LOSABLE = m.TokenBatch | m.Renew | m.Released | m.Goodbye  # the stream goes on without them

KINDS: dict[str, tuple[Callable[[Run, Fault], bool], int]] = {
    "kill": (Run.kill, 3),
    "term": (Run.term, 2),
    "notice": (Run.notice, 2),
    "freeze": (Run.freeze, 2),
    "wedge": (Run.wedge, 1),
    "slow": (Run.slow, 1),
    "cut": (Run.cut, 2),
    "partition": (Run.partition, 2),
    "join": (Run.join, 5),
    "spoil_weights": (Run.spoil_weights, 1),
    "trainer": (Run.trainer, 1),
    "cut_trainer": (Run.cut_trainer, 1),
    "manager": (Run.manager, 2),
    "stall": (Run.stall, 1),
    "fill_disk": (Run.fill_disk, 1),
    "lie": (Run.lie, 1),
    "take": (Run.take, 2),
    "lend": (Run.lend, 3),
    "twice": (Run.twice, 2),
    "late": (Run.late, 1),
    "lose": (Run.lose, 1),
    "break_frame": (Run.break_frame, 1),
    "dismiss": (Run.dismiss, 0),  # this and the others drawn apart
    "refuse": (Run.refuse, 0),
    "withdraw": (Run.withdraw, 0),
    "misreport": (Run.misreport, 0),
    "delay": (Run.delay, 0),
    "forget": (Run.forget, 0),
    "double": (Run.double, 0),
    "neighbour": (Run.neighbour, 0),
    "power": (Run.power, 0),
    "share": (Run.share, 0),
    "bounce": (Run.bounce, 0),
    "misscore": (Run.misscore, 0),
    "line": (Run.line, 0),
    **{kind: (Run.propose, 0) for kind in PROPOSALS},
    "die_environment": (Run.die_environment, 0),
    **{f"{habit}_environment": (Run._next_question, 0) for habit in HABITS},
}


def _from_the_start(fault: Fault) -> bool:
    return fault.kind == "line" and fault.at == 0.0


def run(schedule: Schedule) -> Run:
    """Carry a schedule out; raises what went wrong, an event without end included."""
    with limited(CPU_SECONDS):
        done = Run(schedule)
        done.finish()
    return done


def shrink(schedule: Schedule) -> Schedule:
    """The schedule without every fault that the failure does not need."""
    step = max(1, len(schedule.faults) // 2)
    while True:
        at, smaller = 0, False
        while at < len(schedule.faults):
            candidate = schedule.without(schedule.faults[at : at + step])
            if fails(candidate) is not None:
                schedule, smaller = candidate, True
            else:
                at += step
        if step == 1 and not smaller:
            return schedule
        step = max(1, step // 2)


def fails(schedule: Schedule) -> Exception | None:
    """What goes wrong in a schedule, if anything does."""
    try:
        run(schedule)
    except Exception as error:  # whatever it is: it is what is looked for
        return error
    return None
