"""The manager's decisions: events and a time go in, actions come out.

No socket, clock, thread or random source inside. The driver feeds it in production, the
simulator in virtual time, the tests with random schedules. Times are seconds on any clock
that does not run backwards.
"""

import math
from collections.abc import Iterable

from rlboost_jax.manager.events import (
    Action,
    Event,
    FromServer,
    FromTrainer,
    InstanceExited,
    MachineAdded,
    MachineRemoved,
    ServerFound,
    ServerGone,
    ServerStarted,
    Shutdown,
    Stalled,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.journal import Entry
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.reducer.dispatch import Dispatch
from rlboost_jax.manager.reducer.recovery import Recovery
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.step_checks import ProtocolError
from rlboost_jax.manager.reducer.tail import Tail
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.fleet import Fleet, victim
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster
from rlboost_jax.messages import FleetStatus, Manifest, Refused

ORPHANED = 3  # exit code: no trainer came, or came back


class Manager:
    """Every open request and its tokens, the fleet, the versions, the seeding window."""

    def __init__(self, settings: Settings, now: float = 0.0) -> None:
        self._settings = settings
        self._outbox = Outbox()
        self.ledger = Ledger(self._outbox)
        self.roster = Roster(settings, now)
        self.fleet = Fleet(settings.fleet.max_instances, capped=settings.fleet.sizing != "fixed")
        self.dispatch = Dispatch(settings, self.ledger, self.roster, self._outbox)
        self.servers = Servers(
            settings, self.ledger, self.roster, self.fleet, self.dispatch, self._outbox
        )
        self.trainer = Trainer(
            settings, self.ledger, self.roster, self.dispatch, self.servers, self._outbox, now
        )
        self.recovery = Recovery(
            self.ledger, self.roster, self.fleet, self.servers, self.trainer, self._outbox
        )
        self.tail = Tail(
            settings,
            self.ledger,
            self.roster,
            self.fleet,
            self.dispatch,
            self.servers,
            self.trainer,
        )
        self._status_at = now
        self.over = False

    def recover(self, entries: Iterable[Entry], now: float) -> list[Action]:
        """Go on where the manager that wrote these left off; before any event."""
        self.recovery.recover(entries, now)
        return self._outbox.take()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in an event and all deadlines that have come by `now`."""
        if self.over:
            return []
        self.roster.now = now
        changed = self._take(event, now)
        changed |= self.servers.expire(now)
        changed |= self._carry_out_removal()
        for name in self.fleet.give_up(now):
            self._outbox.signal(name, notice=False)
        if changed or now >= min(self._window_at(), self._retry_at(), self.tail.back_at):
            self.dispatch.settle(now)
            self.tail.settle(now)
            self._staff(now)
            self.roster.account(self.ledger.active, self.fleet.starting, now)
        if self._outbox.trainer is not None and now >= self._status_at:
            self._status_at = now + self._settings.status_seconds
            self._outbox.to_trainer(self.status(now))
        if now >= self.trainer.orphan_at and not self.over:
            self.trainer.end(f"no trainer for {self.trainer.patience:g} s", ORPHANED)
        self.over = self.trainer.ended
        self.recovery.note(now)
        return self._outbox.take()

    def next_deadline(self) -> float | None:
        """When `handle` must be called even if nothing happens; None: never."""
        if self.over:
            return None
        watched = self._status_at if self._outbox.trainer is not None else math.inf
        moments = (self.roster.check_at, self.trainer.orphan_at, watched)
        later = self._window_at(), self._retry_at(), self.tail.back_at
        first = min(*moments, self.fleet.absent_at, *later)
        return None if math.isinf(first) else first

    def status(self, now: float) -> FleetStatus:
        step = self.ledger.active
        return FleetStatus(
            instances=tuple(instance.status(now) for instance in self.roster),
            finished=step.num_finished if step else 0,
            total=len(step.rollouts) if step else 0,
            window_open=self.dispatch.seeding.open,
            window_seconds=self.trainer.window.seconds,
            joined=self.roster.joined,
            lost=self.roster.lost,
            versions_in_use=self._versions_in_use(),
            cost_dollars=self.roster.cost.total(now),
        )

    def manifest(self, version: int) -> Manifest | None:
        """Of a version that some server may still be fetching."""
        return self.servers.versions.manifests.get(version)

    def _take(self, event: Event, now: float) -> bool:
        match event:
            case FromServer(stream, message):
                return self.servers.hear(stream, message, now)
            case ServerGone(stream, reason):
                return self.servers.gone(stream, reason)
            case FromTrainer(stream, message):
                try:
                    self.trainer.hear(stream, message, now)
                except ProtocolError as error:
                    self._outbox.send(stream, Refused(reason=str(error)))
                    self._outbox.close(stream, str(error))
                    self.trainer.gone(stream, now)
            case TrainerGone(stream, _):
                return self.trainer.gone(stream, now)
            case ServerStarted(name, pid):
                self._started(name, pid)
            case InstanceExited(name, detail, sick):
                if sick and name in self.fleet.servers:  # its goodbye may have been lost
                    self.fleet.servers[name].sick = True
                server = self.fleet.exited(name, now)
                if server is not None and not server.joined:
                    self._outbox.record("lost", name, reason=f"ended before it joined: {detail}")
            case ServerFound(name, pid):
                self.fleet.found(name, pid)
            case MachineAdded(machine):
                self.fleet.lend(machine)
            case MachineRemoved():
                self._remove(event)
            case Stalled(seconds):
                self.roster.extend(seconds, now)
                self.trainer.orphan_at += seconds
            case Shutdown(reason):
                self.trainer.end(reason, 0)
            case Tick():
                return False
        return True

    def _started(self, name: str, pid: int) -> None:
        server = self.fleet.servers.get(name)
        if server is not None:  # else it has ended meanwhile
            joined = self.roster.speaks(name, lambda h: (h.instance, h.pid) == (name, pid))
            self.fleet.started(server, pid, joined=joined)

    def _remove(self, event: MachineRemoved) -> None:
        """The market takes a machine back."""
        if not event.machine:
            self.fleet.removal = self.fleet.removal or event
        elif name := self.fleet.take(event.machine):
            self._signal(name, event.notice)

    def _carry_out_removal(self) -> bool:
        """Let a waiting removal hit a server, if one is at work; whether it did."""
        removal = self.fleet.removal
        if removal is None:
            return False
        at_work = [i for i in self.roster if i.state == "ready" and i.in_flight]
        working = {server.name for i in at_work if (server := self.fleet.server_of(i.hello))}
        name = victim([name for name in self.fleet.standing if name in working], removal.draw)
        if name is None:
            return False
        self.fleet.take_under(name)
        self._signal(name, removal.notice)
        return True

    def _signal(self, name: str, notice: bool) -> None:
        """End a server. Under notice it gets no more work."""
        self._outbox.signal(name, notice=notice)
        for instance in self.roster if notice else ():
            if self.fleet.server_of(instance.hello) is self.fleet.servers[name]:
                self.roster.retire(instance)
                self._outbox.record("notice", instance.name, reason="the market", hint=False)

    def _staff(self, now: float) -> None:
        missing = self._missing()
        if self.trainer.ended or not missing or now < self.fleet.retry_at:
            return
        for name in self.fleet.start(missing):
            self._outbox.record("ordered", name)
            self.fleet.servers[name].started_at = now
            self.fleet.servers[name].anew = self.tail.returning
            self._outbox.start(name)

    def _window_at(self) -> float:
        """When the seeding window may close by itself."""
        step = self.ledger.active
        if step is None or not self.dispatch.seeding.open:
            return math.inf
        return self.dispatch.seeding.until if self.dispatch.remote(step) else math.inf

    def _retry_at(self) -> float:
        return self.fleet.retry_at if self._missing() else math.inf

    def _missing(self) -> int:
        if self.fleet.full:  # nearly always, and asked three times at every event
            return 0
        return self.fleet.missing(self.trainer.instance_cap, self.tail.resting)

    def _versions_in_use(self) -> tuple[int, ...]:
        """Whose snapshots must not be deleted; the active step's is among them."""
        versions = self.servers.versions.in_use()
        if self.ledger.active is not None:
            versions.add(self.ledger.active.begin.version)
        return tuple(sorted(versions))
