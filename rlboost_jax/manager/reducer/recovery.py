"""State that outlives a manager: written to its journal as it changes, and restored from it.

Who is connected is not part of it: servers and the trainer dial again. Tokens, steps and
versions are noted where they change (`Outbox.keep`); here are the counts and totals.
"""

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.journal_entries import (
    Answered,
    BatchClosed,
    BatchExtended,
    BatchOpened,
    BatchResumed,
    Collected,
    CollectedRouted,
    Counted,
    Entry,
    Forgotten,
    Published,
    Redone,
    RunState,
    TurnBegun,
)
from rlboost_jax.manager.reducer.batch_reports import BatchReports
from rlboost_jax.manager.reducer.window_control import WindowControl
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.sequences.identities import Batch


class Recovery:
    def __init__(self, owners: Owners, control: WindowControl, reports: BatchReports) -> None:
        self._outbox = owners.outbox
        self._ledger = owners.ledger
        self._roster = owners.roster
        self._fleet = owners.fleet
        self._pools = owners.pools
        self._versions = owners.versions
        self._control = control
        self._reports = reports
        # What was noted last, by batch: its counts, and what was in flight.
        self._counted: dict[Batch, tuple[Books, tuple[int, int]]] = {}
        self._marks: object = None
        self._found = False  # anything in a journal
        self._in_flight: Counted | None = None  # the last there

    def note(self, now: float) -> None:
        """Write the changes of the event just handled to the journal."""
        control, reports, roster, fleet = self._control, self._reports, self._roster, self._fleet
        marks = control.mark(), reports.mark(), roster.mark(), fleet.mark(), self._pools.mark()
        if marks != self._marks:
            self._marks = marks
            self._outbox.keep(
                RunState(
                    **control.snapshot(),
                    **reports.snapshot(),
                    **roster.snapshot(now),
                    **fleet.snapshot(),
                    at=now,
                    pools=self._pools.snapshot(now),
                )
            )
        in_flight, counted = roster.under_way(), self._counted
        snapshot = self._ledger.snapshot()
        for number, active, books in snapshot:
            known = counted.get(number)
            if known is not None and known[0] == books:
                if known[1] == in_flight:
                    continue
                if not active:
                    counted[number] = known[0], in_flight
                    continue
            noted = books.copy()
            counted[number] = noted, in_flight
            self._outbox.keep(
                Counted(
                    batch=number,
                    books=noted,
                    in_flight_reserved=in_flight[0],
                    in_flight_preemptible=in_flight[1],
                )
            )
        if len(counted) > len(snapshot):  # some are forgotten: to begin them anew is to note them
            there = {number for number, *_ in snapshot}
            self._counted = {n: known for n, known in counted.items() if n in there}

    def restore(self, entry: Entry, now: float) -> None:
        """Apply the next entry of a journal. No peer is connected yet."""
        self._found = True
        if isinstance(entry, Counted):
            self._in_flight = entry
        self._restore(entry, now)
        self._outbox.take()  # what was noted again by that

    def restored(self) -> bool:
        """End the recovery; return whether the journal had any entry."""
        if self._found:
            self._ledger.restored(self._in_flight)
        return self._found

    def _restore(self, entry: Entry, now: float) -> None:
        match entry:
            case RunState():
                self._control.restore(entry)
                self._reports.restore(entry)
                self._roster.restore(entry, now)
                self._fleet.restore(entry)
                self._pools.restore(entry.pools, max(0.0, now - entry.at), now)
            case Published():
                self._versions.restore(entry)
            case BatchOpened() | BatchResumed() | TurnBegun() | BatchExtended() | BatchClosed():
                self._ledger.restore(entry, now)
            case Collected() | CollectedRouted():
                self._ledger.restore(entry, now)
                if entry.server:
                    self._roster.names.note(entry.instance, entry.server)
            case Redone() | Answered() | Counted() | Forgotten():
                self._ledger.restore(entry, now)
