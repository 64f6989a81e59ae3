"""The manager's decisions: events and a time go in, actions come out.

No socket, clock, thread or random source inside. The driver feeds it in production, the
simulator in virtual time, the tests with random schedules. Times are seconds on any clock
that does not run backwards.

Here stands the order in which the owners of records and those who decide are called; what each
does with an event stands with them.
"""

import math
from collections.abc import Iterable
from typing import assert_never

from rlboost_jax.manager.events import (
    Action,
    DiskWaited,
    Event,
    FromServer,
    FromTrainer,
    MachineAdded,
    MachineRemoved,
    Priced,
    ServerGone,
    Shutdown,
    Stalled,
    Tick,
    TrainerGone,
)
from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.manager.reducer.batch_checks import ProtocolError
from rlboost_jax.manager.reducer.components import Choices, Components
from rlboost_jax.manager.reducer.manager_view import View
from rlboost_jax.manager.settings import Settings
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.messages import FleetStatus, RequestRefused, TrainerMessage
from rlboost_jax.providers import base as providers

ORPHANED = 3  # exit code: no trainer came, or came back


class Manager:
    """Every open request and its tokens, the fleet, the versions, the seeding window.

    Args:
        life: an id unique to this manager process; it prefixes the instance nonces it issues.

    Attributes:
        owners: all records of the run; changed by their own methods alone.
        view: a read-only view of the records.
        components: the parts that decide and act.
        over: whether the run has ended; no further event has an effect.
    """

    def __init__(
        self,
        settings: Settings,
        now: float = 0.0,
        choices: Choices | None = None,
        *,
        life: str = "0",
    ) -> None:
        self._status_seconds = settings.status_seconds
        self._status_at = now
        self.owners = owners = Owners.of(settings, now, life)
        self._outbox = owners.outbox
        self.components = Components(settings, owners, choices or Choices(), now)
        self.view = View(owners, self.components)
        self.over = False

    def recover(self, entries: Iterable[Entry], now: float) -> list[Action]:
        """Resume from the journal entries of an earlier manager; before any event."""
        for entry in entries:
            self.restore(entry, now)
        return self.restored(now)

    def restore(self, entry: Entry, now: float) -> None:
        """Apply the next journal entry; `restored` ends the recovery."""
        self.components.recovery.restore(entry, now)

    def restored(self, now: float) -> list[Action]:
        """End the recovery, and return the first actions."""
        if self.components.recovery.restored():
            self.components.trainer.recover(now)
            batches = self.owners.ledger.batches.values()
            self._outbox.record(
                "recovered",
                batches=len(batches),
                finished=sum(batch.num_finished for batch in batches),
                tokens=sum(r.sequences.num_tokens for batch in batches for r in batch.rollouts),
            )
        return self._outbox.take()

    def handle(self, event: Event, now: float) -> list[Action]:
        """Process an event and all deadlines that have come by `now`."""
        if self.over:
            return []
        parts, owners, trainer = self.components, self.owners, self.components.trainer
        changed = self._take(event, now)
        changed |= parts.servers.expire(now)
        changed |= parts.provisioning.carry_out_removal()
        parts.provisioning.abandon_absent(now)
        parts.provisioning.keep_to_budget(now)
        if changed or now >= self._wake_at():
            batches = list(owners.ledger.open.values())
            if batches:
                parts.dispatch.settle(batches, now)
            parts.announcements.settle()
            parts.peers.settle()
            parts.servers.scores.settle(now)
            parts.tail.settle(batches, now)
            parts.bidding.settle(batches, now)
            if not trainer.ended:
                parts.replacements.settle(now)
                parts.provisioning.start(parts.tail.resting, now, anew=parts.tail.returning)
            owners.roster.account(batches, owners.fleet.starting_hourly, now)
            owners.pools.account(now)
            parts.reports.account(owners.ledger.active, now)
        if owners.outbox.trainer is not None and now >= self._status_at:
            self._status_at = now + self._status_seconds
            owners.outbox.to_trainer(self.status(now))
        if now >= trainer.orphan_at and not self.over:
            trainer.end(f"no trainer for {trainer.patience:g} s", ORPHANED)
        self.over = trainer.ended
        parts.recovery.note(now)
        return self._outbox.take()

    def next_deadline(self) -> float | None:
        """When `handle` must be called even if nothing happens; None: never."""
        if self.over:
            return None
        watched = self._status_at if self._outbox.trainer is not None else math.inf
        moments = self.owners.roster.check_at, self.components.trainer.orphan_at, watched
        first = min(*moments, self.owners.fleet.absent_at, self._wake_at())
        return None if math.isinf(first) else first

    def knows_start(self, seconds: float) -> None:
        """Set how long instances take from an order to work; before any event."""
        self.owners.roster.started(seconds)

    def was_there(self, name: str) -> None:
        """Note that a server of the provider was started before this manager was."""
        self.owners.fleet.was_there(name)

    def status(self, now: float) -> FleetStatus:
        return self.view.status(now)

    def _take(self, event: Event, now: float) -> bool:
        """Pass an event to the component it concerns; return whether anything may have changed."""
        parts, owners = self.components, self.owners
        match event:
            case FromServer(stream, message):
                return parts.servers.hear(stream, message, now)
            case ServerGone(stream, reason):
                return parts.servers.gone(stream, reason, now)
            case FromTrainer(stream, message):
                self._hear_trainer(stream, message, now)
            case TrainerGone(stream, _):
                return parts.trainer.gone(stream, now)
            case providers.Listed(name, nonce):
                owners.fleet.found(name, nonce)
            case providers.Granted():
                parts.provisioning.granted(event)
            case providers.Started():
                return False  # what matters is when it joins
            case providers.Withdrawn():
                parts.servers.withdraw(event, now)
            case providers.Refused() | providers.Exited():
                parts.provisioning.ended(event, now)
            case Priced(pool, price_per_hour):
                parts.provisioning.priced(pool, price_per_hour)
            case MachineAdded(machine):
                owners.fleet.lend(machine)
            case MachineRemoved():
                parts.provisioning.removed(event)
            case Stalled(seconds):
                owners.roster.forgive(seconds, now)
                parts.trainer.forgive(seconds)
            case DiskWaited(seconds):
                owners.roster.excuse(seconds, now)
            case Shutdown(reason):
                parts.trainer.end(reason, 0)
            case Tick():
                return False
            case _:
                assert_never(event)
        return True

    def _hear_trainer(self, stream: int, message: TrainerMessage, now: float) -> None:
        try:
            self.components.trainer.hear(stream, message, now)
        except ProtocolError as error:
            self._outbox.send(stream, RequestRefused(reason=str(error)))
            self._outbox.close(stream, str(error))
            self.components.trainer.gone(stream, now)

    def _wake_at(self) -> float:
        """When work or the fleet has to be settled again though no event comes."""
        parts, batch = self.components, self.owners.ledger.active
        window = math.inf if batch is None else parts.dispatch.wake_at(batch)
        return min(
            window,
            parts.purchases.wake_at,
            parts.tail.back_at,
            parts.bidding.wake_at,
        )
