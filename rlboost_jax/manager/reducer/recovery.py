"""What of a manager outlives it: noted in its journal as it changes, and read back.

Who is connected is not part of it: servers and the trainer dial again. Tokens, steps and
versions are noted where they change (`Outbox.keep`); here are the counts and totals.
"""

from collections.abc import Iterable

from rlboost_jax.manager.journal import (
    Collected,
    Counted,
    Entry,
    Forgotten,
    Published,
    Redone,
    RunState,
    StepClosed,
    StepExtended,
    StepOpened,
    StepResumed,
)
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.reducer.servers import Servers
from rlboost_jax.manager.reducer.trainer import Trainer
from rlboost_jax.manager.state.fleet import Fleet
from rlboost_jax.manager.state.ledger import Ledger
from rlboost_jax.manager.state.roster import Roster


class Recovery:
    def __init__(
        self,
        ledger: Ledger,
        roster: Roster,
        fleet: Fleet,
        servers: Servers,
        trainer: Trainer,
        outbox: Outbox,
    ) -> None:
        self._ledger = ledger
        self._roster = roster
        self._fleet = fleet
        self._servers = servers
        self._trainer = trainer
        self._outbox = outbox
        self._counted: dict[int, tuple[int, ...]] = {}  # what was noted last, by step
        self._state: object = None

    def note(self, now: float) -> None:
        """Note what the event just handled has changed."""
        roster, trainer = self._roster, self._trainer
        state = (
            trainer.window,
            trainer.learnt,
            tuple(trainer.reports.paid.items()),
            roster.joined,
            roster.lost,
            roster.numbers,
            self._fleet.numbers,
            len(roster.banished),
            roster.cost.level,
            roster.cost.lumps,
        )
        if state != self._state:
            self._state = state
            self._outbox.keep(
                RunState(
                    window=trainer.window,
                    learnt=trainer.learnt,
                    paid=dict(trainer.reports.paid),
                    banished=dict(roster.banished),
                    joined=roster.joined,
                    lost=roster.lost,
                    numbers=roster.numbers,
                    fleet_numbers=self._fleet.numbers,
                    dollars=roster.cost.total(now),
                    dollars_per_second=roster.cost.level,
                    at=now,
                )
            )
        in_flight = roster.in_flight[True], roster.in_flight[False]
        active = self._ledger.active
        current = active.begin.step if active else -1
        counts = {number: step.books for number, step in self._ledger.steps.items()}
        counts[-1] = self._ledger.gap
        counted: dict[int, tuple[int, ...]] = {}
        for number, books in counts.items():
            counted[number] = values = in_flight + books.values()
            aside, known = number != current, self._counted.get(number)
            if known == values or (aside and known is not None and known[2:] == values[2:]):
                continue
            self._outbox.keep(
                Counted(
                    step=number,
                    books=books.copy(),
                    in_flight_reserved=in_flight[0],
                    in_flight_preemptible=in_flight[1],
                )
            )
        self._counted = counted

    def recover(self, entries: Iterable[Entry], now: float) -> None:
        """Take in a journal. Nobody is connected yet."""
        last: Counted | None = None
        found = 0
        for entry in entries:
            found += 1
            if isinstance(entry, Counted):
                last = entry
            self._replay(entry, now)
        self._outbox.take()  # what was noted again by that
        if not found:
            return
        for step in self._ledger.steps.values():
            step.requeue()
            step.books.settle(sum(rollout.num_tokens for rollout in step.rollouts))
        if last is not None:
            self._ledger.books.wasted(last.in_flight_reserved, reserved=True)
            self._ledger.books.wasted(last.in_flight_preemptible, reserved=False)
        self._trainer.recover(now)
        self._outbox.record(
            "recovered",
            steps=len(self._ledger.steps),
            finished=sum(step.num_finished for step in self._ledger.steps.values()),
            tokens=sum(r.num_tokens for s in self._ledger.steps.values() for r in s.rollouts),
        )

    def _replay(self, entry: Entry, now: float) -> None:
        ledger = self._ledger
        match entry:
            case RunState():
                self._trainer.window, self._trainer.learnt = entry.window, entry.learnt
                self._trainer.reports.paid = dict(entry.paid)
                self._roster.joined, self._roster.lost = entry.joined, entry.lost
                self._roster.numbers = entry.numbers
                self._fleet.numbers = entry.fleet_numbers
                self._roster.banished = dict(entry.banished)
                since = max(0.0, now - entry.at)  # a clock that was set back says nothing
                self._roster.cost.resume(entry.dollars + since * entry.dollars_per_second, now)
            case Published(manifest=manifest):
                self._servers.versions.restore(manifest)
            case StepOpened(begin=begin, at=at):
                ledger.begin(begin, min(at, now))
            case StepResumed(step=number, at=at) if number in ledger.steps:
                before, step = ledger.active, ledger.steps[number]
                ledger.begin(step.begin, now)
                if step is not before:
                    step.begun_at = min(at, now)
            case StepExtended() | Collected() | Redone():
                ledger.replay(entry, now)
            case Counted(step=number, books=books):
                if number == -1:
                    ledger.gap = books.copy()
                elif number in ledger.steps:
                    ledger.steps[number].books = books.copy()
            case StepClosed(step=number):
                if ledger.active is not None and ledger.active.begin.step == number:
                    ledger.close(ledger.active)
            case Forgotten(committed=committed):
                ledger.forget(committed)
