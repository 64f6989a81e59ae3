"""Reports of trained batches: times, instances, tokens and dollars."""

from statistics import median
from typing import Any, Final

from rlboost_jax.manager.accounts import Integral
from rlboost_jax.manager.journal_entries import RunState
from rlboost_jax.manager.reducer.placements import Placements
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.owners import Owners
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.messages import BatchReport, BatchTrained, WindowState
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.sequences.transcript import GIVEN

NAMED_LINES: Final = 8  # of the longest leases, in the event of a batch


class BatchReports:
    def __init__(self, owners: Owners, placements: Placements) -> None:
        self._roster = owners.roster
        self._placements = placements
        self._outbox, self._peers = owners.outbox, owners.peers
        self._ready_before = 0.0  # instance-seconds when the batch began
        self._paid_before: float | None = None  # dollars then; None: another manager saw it
        self._paid: dict[Batch, float] = {}  # batch → dollars of the run when it was reported
        # Batch → how many servers had joined, were lost and had left by then.
        self._counts: dict[Batch, tuple[int, int, int]] = {}
        # Response-seconds of the batch since it began: parked, and not finished.
        self._parked, self._unfinished = Integral(0.0), Integral(0.0)
        # Slots that others have on servers' devices, and servers that may not grow yet, both times
        # seconds since it began.
        self._lent, self._frozen = Integral(0.0), Integral(0.0)

    def mark(self) -> tuple[object, ...]:
        """A value that changes whenever `snapshot` does."""
        return tuple(self._paid.items())

    def snapshot(self) -> dict[str, Any]:
        """Fields of `RunState` that are kept here."""
        return {"paid": dict(self._paid), "counts": dict(self._counts)}

    def restore(self, entry: RunState) -> None:
        self._paid = dict(entry.paid)
        # A manager of an earlier release kept no counts: what it had counted was reported.
        known = dict.fromkeys(entry.paid, (entry.joined, entry.lost, entry.left))
        self._counts = dict(entry.counts or known)

    def begin(self, now: float) -> None:
        """Start the accounts of a batch."""
        self._ready_before = self._roster.ready.total(now)
        self._paid_before = self._roster.cost.total(now)
        self._parked, self._unfinished = Integral(now), Integral(now)
        self._lent, self._frozen = Integral(now), Integral(now)

    def account(self, batch: BatchRecord | None, now: float) -> None:
        """Integrate over time the parked responses and the slots that servers lent.

        To be called after whatever may have changed them.
        """
        self._lent.set(self._roster.index.lent, now)
        self._frozen.set(self._roster.index.num_frozen, now)
        if batch is not None and batch.begin.turns > 1:
            self._parked.set(batch.num_parked, now)
            self._unfinished.set(len(batch.rollouts) - batch.num_finished, now)

    def forget(self, batch: Batch) -> None:
        """Drop what is known of batches before this one, which will not be reported again."""
        self._paid = {b: paid for b, paid in self._paid.items() if b >= batch}
        self._counts = {b: counts for b, counts in self._counts.items() if b >= batch}

    def instances(self, batch: BatchRecord, now: float) -> float:
        """Preemptible instances that were ready, averaged over the batch."""
        return _mean(self._roster.ready.total(now) - self._ready_before, batch, now)

    def report(
        self, batch: BatchRecord, seeding_seconds: float, window: WindowState, now: float
    ) -> BatchReport:
        """Build the report on a closed batch for the trainer.

        Args:
            seeding_seconds: that its window was open.
            window: of the next batch.
        """
        books, delivered = batch.books, batch.delivered(measuring=False)
        measured = [
            part
            for r in batch.delivered(measuring=True)
            for part in r.sequences.parts
            if part[0] != GIVEN
        ]
        own = sum(count for name, count in measured if name in self._roster.own)
        others = sum(count for _, count in measured) - own
        seconds = batch.rollout_seconds
        cost, between = self._cost_since_last(batch.begin.batch, now)
        joined, lost, left = self._counts_since_last(batch.begin.batch)
        return BatchReport(
            batch=batch.begin.batch,
            rollout_seconds=seconds,
            remote_wait_seconds=now - batch.begun_at - seconds,
            seeding_window_seconds=seeding_seconds,
            instances_mean=self.instances(batch, now),
            instances_joined=joined,
            instances_lost=lost,
            instances_left=left,
            requests_migrated=books.migrated,
            tokens_generated=books.generated - own - others,
            tokens_delivered=sum(rollout.sequences.num_sampled for rollout in delivered),
            tokens_lost=books.lost,
            tokens_prefilled_again=books.prefilled_again,
            tokens_reserved=books.reserved - own,
            tokens_preemptible=books.preemptible - others,
            tokens_measured=own + others,
            cost_dollars=cost,
            cost_between_dollars=between,
            window=window,
            slots_lent_mean=_mean(self._lent.total(now), batch, now),
            instances_frozen_mean=_mean(self._frozen.total(now), batch, now),
            rollouts_handed_back=books.victims,
            # Of a run without drafts they are not numbers.
            tokens_drafted=books.drafted or None,
            drafts_accepted=books.accepted if books.drafted else None,
            decode_steps_saved=books.steps_saved if books.drafted else None,
            # Where nothing is billed nothing is saved either.
            dollars_saved=books.dollars_saved if books.drafted and cost else None,
            weights_from_servers=self._peers.take_exchanged(),
            **self._lines(),
            **self._turns(batch, delivered, now),
        )

    def record(self, batch: BatchRecord, message: BatchTrained, report: BatchReport) -> None:
        """Record the composition of a batch, to fit models to."""
        lengths: dict[int, list[int]] = {}
        for rollout in batch.delivered(measuring=False):
            lengths.setdefault(rollout.group, []).append(rollout.sequences.num_sampled)
        for instance in self._roster:
            self._placements.record_usage(instance)
        self._outbox.record(
            "trained",
            lengths=list(lengths.values()),
            train_seconds=message.train_seconds,
            train_wait_seconds=message.train_wait_seconds,
            seeding_window_seconds=report.seeding_window_seconds,
            instances_mean=report.instances_mean,
        )
        if lines := self._known():
            worst = sorted(lines, key=lambda i: self._roster.lease(i), reverse=True)[:NAMED_LINES]
            self._outbox.record(
                "lines",
                known=len(lines),
                worst=[
                    {
                        "instance": i.name,
                        "round_trip": round(i.lease.line.round_trip, 4),
                        "losses": round(i.lease.line.losses, 4),
                        "lease_seconds": round(self._roster.lease(i), 3),
                    }
                    for i in worst
                ],
            )

    def _known(self) -> list[Instance]:
        """Preemptible instances whose connection was measured."""
        return [i for i in self._roster if not i.reserved and i.lease.line.known]

    def _turns(self, batch: BatchRecord, delivered: list[Rollout], now: float) -> dict[str, float]:
        """Turn metrics by their names in `BatchReport`; none for a single-turn batch."""
        if batch.begin.turns == 1:
            return {}
        books, unfinished = batch.books, self._unfinished.total(now)
        values = {
            "parked_share": (self._parked.total(now), unfinished),
            "turns_mean": (sum(r.sequences.num_turns for r in delivered), len(delivered)),
            "sequences_mean": (sum(1 + len(r.sequences.ended) for r in delivered), len(delivered)),
            "returned_share": (books.returned, books.resumed),
        }
        return {name: amount / whole for name, (amount, whole) in values.items() if whole}

    def _lines(self) -> dict[str, float]:
        """Median and worst measurements of connections, by their names in `BatchReport`."""
        known = self._known()
        values = {
            "line_round_trip": [i.lease.line.round_trip for i in known],
            "line_losses": [i.lease.line.losses for i in known],
            "lease_seconds": [self._roster.lease(i) for i in known],
        }
        medians = {f"{name}_median": median(found) for name, found in values.items() if found}
        return medians | {f"{name}_worst": max(found) for name, found in values.items() if found}

    def _cost_since_last(self, batch: Batch, now: float) -> tuple[float, float]:
        """Dollars since the previous batch's report, and those of them before this turn.

        So the rows that a run keeps add up to all that was paid: costs between two batches are in
        the second, and what a returned trainer does again replaces what it did.
        """
        self._paid = {b: paid for b, paid in self._paid.items() if b < batch}
        before = max(self._paid.values(), default=0.0)
        self._paid[batch] = self._roster.cost.total(now)
        begun = before if self._paid_before is None else max(before, self._paid_before)
        return self._paid[batch] - before, begun - before

    def _counts_since_last(self, batch: Batch) -> tuple[int, int, int]:
        """Servers that joined, were lost and left with notice, since the report of the batch
        before this one: the rows that a run keeps add up to all of them, as dollars do."""
        self._counts = {b: counts for b, counts in self._counts.items() if b < batch}
        before = self._counts[max(self._counts)] if self._counts else (0, 0, 0)
        roster = self._roster
        now = self._counts[batch] = roster.joined, roster.lost, roster.left
        return now[0] - before[0], now[1] - before[1], now[2] - before[2]


def _mean(amount_seconds: float, batch: BatchRecord, now: float) -> float:
    """Time average over a batch's turn so far."""
    elapsed = now - batch.begun_at
    return amount_seconds / elapsed if elapsed > 0 else 0.0
