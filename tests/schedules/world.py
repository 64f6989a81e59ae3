"""A whole run in virtual time and one thread; only the manager and its journal are real.

The network keeps the frames of a stream in order, as TCP does, delays them, and loses those that
are under way when a stream is cut. What a frame says may be changed on the way (`Wire`), for
servers are not to be believed.
"""

import random
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlboost_jax import messages as m
from rlboost_jax.manager.events import (
    Append,
    Close,
    Event,
    Exit,
    FromServer,
    MachineAdded,
    Priced,
    Record,
    Request,
    Send,
    ServerGone,
    Stalled,
    Terminate,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.journal_entries import BatchOpened, Entry
from rlboost_jax.manager.reducer.manager import Manager
from rlboost_jax.manager.service.journal_files import SUFFIX
from rlboost_jax.manager.settings import Settings
from rlboost_jax.providers.base import Exited, Granted, Listed, Refused, Started
from rlboost_jax.simulator.virtual_clock import VirtualClock
from tests.manager.fakes import RUN
from tests.schedules.balanced import Balanced
from tests.schedules.disk import Disk, Platter
from tests.schedules.lines import Line
from tests.schedules.server import Server

BUSY = 2000  # events at one moment: more mean that a deadline is never met
RESOLUTION = 1e-9  # seconds: a timer of the loop is as much late
MEMORY = Path("/dev/shm")  # journals are written there if it exists: thousands a minute


class World:
    """Time, the manager, and the wires to it.

    `check` is called after every event with the manager in place, or `check_leases` where the event
    can have changed nothing else; `disk` opens its journal.
    """

    def __init__(
        self,
        chosen: Settings,
        seed: int,
        check: Callable[["World"], None],
        check_leases: Callable[["World"], None],
        disk: Callable[[Platter, str], Disk] = Disk,
    ) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.time = VirtualClock()
        self.settings = chosen
        self.manager: Manager | None = None
        self.servers: list[Server] = []
        self.trainer: Any = None
        self.records: list[Record] = []
        self.exit: Exit | None = None
        self.forgetful = False  # the journal has lost something that was in it
        self.lied = False  # some server has made tokens up
        self.drafts = False  # servers draft
        self.drafted = 0  # tokens, by what managers were told
        self.ready: dict[int, tuple[int, str]] = {}  # stream → what it last said to hold
        self.heard: dict[int, float] = {}  # stream → when its last frame came in
        self.tamper: Callable[[Server, Event], Sequence[tuple[float, Event]]] | None = None
        self.machines: set[str] = set()  # that the market has lent
        self.lines: dict[int, float] = {}  # number of a server → of its line: the amount of `ways`
        self.measured = chosen.manager.longest_lease_seconds > 0  # leases follow lines
        self.leases: dict[str, float] = {}  # instance → seconds, at the last check
        self.refusals = 0  # requests that the provider will refuse
        self.delayed: list[float] = []  # seconds by which it will be late with the next ones
        self.forgotten = 0  # requests that will never be answered or listed
        self.doubled = 0  # requests that two servers will come of
        self.seen: set[str] = set()  # faults that came about
        self.prices: dict[str, float] = {}  # reported to this manager, by pool
        self.balanced: Balanced | None = None  # what the invariants have seen
        self.checked = 0  # records that they have seen
        self.named: dict[str, int] = {}  # instance → its stream, at the last check
        self._check, self._check_leases = check, check_leases
        self._streams: dict[int, Any] = {}
        self._cut: set[int] = set()  # streams that carry nothing any more
        self._wires: dict[tuple[int, bool], float] = {}
        self._held_up: dict[tuple[int, bool], float] = {}  # until when nothing arrives
        self._tick_at = float("inf")
        self._lives = 0  # of managers
        self._ahead = 0.0  # of the clock that the manager goes by
        self._stalled_until = 0.0
        self._stalled = 0.0  # seconds, which the manager has yet to hear of
        self._gap = False  # nothing is written since the disk was full
        self._gapped: set[int] = set()  # steps with something that was not written
        self._folder = tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None)
        self._platter, self._disk = Platter(Path(self._folder.name)), disk
        self.start_manager()

    def close(self) -> None:
        """Leave nothing on the disk."""
        self.journal.close()
        self._folder.cleanup()

    @property
    def life(self) -> str:
        """Life of the manager, with which nonces of its servers begin."""
        return str(self._lives)

    # Time

    @property
    def now(self) -> float:
        return self.time.now

    def clock(self) -> float:
        """What the manager's clock says: it begins anew with a host that was restarted."""
        return self.now + self._ahead

    def later(self, seconds: float, what: Callable[[], None]) -> None:
        self.time.after(seconds, what)

    def run(self, until: Callable[[], bool], limit: float) -> None:
        """Let time pass; raises if `until` does not come true within `limit` seconds."""
        busy, before = 0, self.now

        def over() -> bool:
            nonlocal busy, before
            busy, before = busy + 1 if before == self.now else 0, self.now
            assert busy < BUSY, f"time stands still at {before:.2f} s"
            return until()

        self.time.run(over, limit)
        assert until(), f"not done at {self.now:.2f} s"

    def pass_time(self, seconds: float) -> None:
        """Let what is due in the next seconds happen."""
        self.time.pass_until(self.now + seconds)

    # The manager's life

    def start_manager(self) -> None:
        """A new process: nothing but the journal is left of the one before."""
        self._lives += 1
        self.prices = {}
        self.journal = self._disk(self._platter, RUN)
        entries, _ = self.journal.read()
        self.manager = Manager(self.settings, self.clock(), life=self.life)
        self._tick_at = float("inf")
        for action in self.manager.recover(entries, self.clock()):
            self._perform(action)
        known = self.manager.owners.roster.names.numbers, self.manager.owners.fleet.numbers
        given = self._platter.promised
        assert known[0] >= given[0] and known[1] >= given[1], "names would be given twice"
        for server in self.servers:
            if server.granted and server.alive:
                self.deliver(Listed(server.name, server.nonce))
        for machine in sorted(self.machines):
            self.deliver(MachineAdded(machine))
        self._wake()

    def crash_manager(
        self,
        seconds: float,
        *,
        torn: int = 0,
        flipped: int = 0,
        ahead: float = 0.0,
        power: bool = False,
        misdirected: bool = False,
    ) -> None:
        """It dies, and is started again after a while.

        Args:
            torn: bytes that the last file of the journal loses at its end.
            flipped: a byte of it is changed, so many before its end; 0: none.
            ahead: seconds by which the next one's clock is ahead of this one's.
            power: its host loses it.
            misdirected: a sector of a journal has been written to the wrong place.
        """
        if self.manager is None or self.exit is not None:
            return
        damaged = bool(torn or flipped or power or misdirected)
        self.forgetful |= damaged
        kept = {} if damaged or self._gap else tokens_of(self.manager)
        kept = {key: kept[key] for key in kept if key[0] not in self._gapped}
        self.journal.close()
        self._damage(torn, flipped)
        if torn or flipped:
            self._platter.forget()
        if power:
            self._platter.cut(self.random)
        if misdirected:
            self._platter.misdirect(self.random)
        self.manager, self._stalled_until, self._stalled = None, self.now, 0.0
        for stream, owner in self._streams.items():
            if stream not in self._cut:
                self._cut.add(stream)
                self.later(self.random.uniform(0.0, 0.02), _hang_up(owner, stream))

        def restart() -> None:
            self._ahead += ahead
            self.start_manager()
            recovered = tokens_of(self.manager)
            assert all(recovered.get(key) == kept[key] for key in kept), "lost what it had taken in"

        self.later(seconds, restart)

    def stall_manager(self, seconds: float) -> None:
        """The process stands still: what comes meanwhile is read afterwards."""
        if self.manager is not None and self.now >= self._stalled_until:
            self._excuse()
            self._stalled_until, life = self.now + seconds, self._lives
            self._stalled = seconds

            def over() -> None:
                if life == self._lives:
                    self._excuse()

            self.time.at(self._stalled_until, over)

    def _excuse(self) -> None:
        """Before anything else that it hears, a manager hears that it stood still."""
        seconds, self._stalled = self._stalled, 0.0
        if seconds:
            self.deliver(Stalled(seconds))

    # Wires

    def owner(self, stream: int) -> Any:
        """Who has opened a stream."""
        return self._streams[stream]

    def open(self, owner: Any) -> int:
        stream = len(self._streams) + 1
        self._streams[stream] = owner
        return stream

    def cut(self, stream: int, *, noticed: bool) -> None:
        """Nothing passes any more. Each side hears of it if `noticed`, else by its own clock."""
        if stream in self._cut or stream not in self._streams:
            return
        owner = self._streams[stream]
        self._cut.add(stream)
        if noticed:
            gone = TrainerGone if owner is self.trainer else ServerGone
            self.later(0.01, lambda: self.deliver(gone(stream, "cut")))
        self.later(0.01 if noticed else 5.0, _hang_up(owner, stream))

    def hold_up(self, stream: int, until: float, *, up: bool) -> None:
        """Frames of one direction arrive later: in order, and all of them."""
        self._held_up[stream, up] = max(until, self._held_up.get((stream, up), 0.0))

    def say(self, server: Server, event: Event) -> None:
        """A server's frame, as the wire lets it through."""
        for delay, changed in self.tamper(server, event) if self.tamper else ((0.0, event),):
            if delay:
                self.later(delay, lambda changed=changed: self._arrive(server.stream, changed))  # type: ignore[misc]
            else:
                self.up(server.stream, changed)

    def up(self, stream: int, event: Event) -> None:
        """Put an event on the wire to the manager."""
        said = event.message if isinstance(event, FromServer) else None
        self._on_wire(stream, True, lambda: self._arrive(stream, event), said)

    def deliver(self, event: Event) -> None:
        """The manager, if there is one, takes in an event."""
        if self.manager is None or self.exit is not None:
            return
        if self.now < self._stalled_until:
            life = self._lives  # what waits for a process goes with it
            self.time.at(
                self._stalled_until, lambda: self.deliver(event) if life == self._lives else None
            )
            return
        if self._stalled:
            self._excuse()
        match event:
            case FromServer():
                self.heard[event.stream] = self.now
                if isinstance(event.message, m.Ready):
                    self.ready[event.stream] = event.message.version, event.message.params_digest
                elif isinstance(event.message, m.Renew) and event.message.drafts is not None:
                    self.drafted += event.message.drafts.drafted
            case Stalled():
                extended = {s: min(self.now, at + event.seconds) for s, at in self.heard.items()}
                self.heard.update(extended)
            case Priced():
                self.prices[event.pool] = event.price_per_hour
        actions = self.manager.handle(event, self.clock())
        for action in actions:
            self._perform(action)
        if _changes_leases_only(event, actions):
            self._check_leases(self)
        else:
            self._check(self)
        self._wake()

    def _arrive(self, stream: int, event: Event) -> None:
        if stream not in self._cut:
            self.deliver(event)

    def _wake(self) -> None:
        assert self.manager is not None
        deadline = self.manager.next_deadline()
        if deadline is not None and deadline < self._tick_at:
            self._tick_at = deadline
            life = self._lives
            due = deadline - self._ahead + RESOLUTION
            self.time.at(due, lambda: self._tick(life))

    def _tick(self, life: int) -> None:
        if life == self._lives:
            self._tick_at = float("inf")
            self.deliver(Tick())

    def _perform(self, action: Any) -> None:
        match action:
            case Append(entries):
                self._append(entries)
            case Send(stream, message):
                if isinstance(message, m.Generate):
                    named = {(r.version, message.params_digest) for r in message.requests}
                    assert named == {self.ready[stream]}, "work for weights that it does not hold"
                self._down(stream, lambda: self._streams[stream].hear(stream, message), message)
            case Close(stream, _):
                self._down(stream, lambda: self._streams[stream].hung_up(stream))
            case Record():
                self.records.append(action)
            case Request(name, nonce) if self.refusals:
                self.refusals -= 1
                refused = Refused(name, nonce, "no capacity")
                self.later(self.random.uniform(0.0, 0.5), lambda: self.deliver(refused))
            case Request() if self.forgotten:
                self.forgotten -= 1
            case Request(name, nonce):
                late = self.delayed.pop() if self.delayed else 0.0
                server = Server(self, name=name, nonce=nonce)
                self.later(0.2 + late, server.connect)
                self.later(self.random.uniform(0.1, 0.25) + late, lambda: self._grant(server))
                if self.doubled:
                    self.doubled -= 1
                    self.later(0.3 + late, Server(self, name=name, nonce=nonce).connect)
            case Terminate(name, grace_seconds):
                for server in self.servers:
                    if server.name == name and server.alive:
                        server.notice() if grace_seconds else server.kill()
            case Exit():
                self.exit = action

    def _append(self, entries: Sequence[Entry]) -> None:
        failed = bool(self.journal.append(entries))
        opened = {entry.begin.batch for entry in entries if isinstance(entry, BatchOpened)}
        self._gap = failed or (self._gap and not opened)
        self.forgetful |= failed
        if self._gap and self.manager is not None:
            self._gapped |= self.manager.view.batches.keys()
        elif opened:
            self._gapped -= opened

    def _grant(self, server: Server) -> None:
        """The provider's words come when they come: its server may have joined before, or ended."""
        server.granted = True
        self.deliver(Granted(server.name, server.nonce))
        self.deliver(Started(server.name, server.nonce))
        if not server.alive:
            self.deliver(Exited(server.name, server.nonce, "killed"))

    def _down(self, stream: int, what: Callable[[], None], said: Any = None) -> None:
        self._on_wire(stream, False, lambda: None if stream in self._cut else what(), said)

    def _on_wire(self, stream: int, up: bool, what: Callable[[], None], said: Any = None) -> None:
        wire, now = (stream, up), self.now
        if wire in self._held_up:
            now = max(now, self._held_up[wire])
        arrival = now + self.random.uniform(0.001, 0.02)
        if self.measured and (line := self._line(stream)) is not None:
            arrival += line.late(up, len(m.encode(said)) if said is not None else 0, self.now)
        before = self._wires.get(wire, 0.0)
        self._wires[wire] = arrival = before if before > arrival else arrival
        self.time.at(arrival, what)

    def _line(self, stream: int) -> Line | None:
        owner = self._streams.get(stream)
        return owner.line if isinstance(owner, Server) else None

    def _damage(self, torn: int, flipped: int) -> None:
        files = sorted(Path(self._folder.name).glob(f"*{SUFFIX}"))
        if not files or not (torn or flipped):
            return
        data = bytearray(files[-1].read_bytes())
        if flipped and len(data) > flipped:
            data[-flipped] ^= 0x10
        files[-1].write_bytes(data[: len(data) - torn] if torn else data)


def tokens_of(manager: Manager | None) -> dict[tuple[int, int], tuple[object, ...]]:
    """All tokens that a manager keeps, sequence by sequence, by step and sample."""
    assert manager is not None
    return {
        (number, r.sample): (
            *(r.sequences.work, r.sequences.attempt),
            *(r.transcript.prompt, bytes(r.transcript.tokens), *r.results),
        )
        for number, step in manager.view.batches.items()
        for r in step.rollouts
    }


def _changes_leases_only(event: Event, actions: Sequence[Any]) -> bool:
    """A deadline that nobody has missed, a renewal, or tokens that end no turn and cause no message
    (nearly half of all events). Whatever else they might have broken is found by the check after
    the next event."""
    match event:
        case Tick():
            return not actions
        case FromServer(message=m.Renew()):
            return len(actions) == 1 and isinstance(actions[0], Send)
        case FromServer(message=m.TokenBatch()):
            return len(actions) == 1 and isinstance(actions[0], Append)
    return False


def _hang_up(owner: Any, stream: int) -> Callable[[], None]:
    return lambda: owner.hung_up(stream)
