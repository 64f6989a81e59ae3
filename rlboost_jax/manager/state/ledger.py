"""Every open request and its tokens, sample by sample.

Invariants:
- a rollout is waiting, held by one instance, parked, finished, or its batch is cancelled;
- each placement has a request id of its own, so tokens of an earlier placement are known
  as late, from any server;
- a turn is over when its last token is a stop id or completes a stop string, or it has as many as
  it may (`endings.py`): that is read off the tokens, and whatever follows is lost. A response is
  finished with its last turn, or when the environment says so; until then it is parked;
- a token is counted once as sampled, and once as lost unless its response is delivered.
"""

import math
from collections.abc import Collection, Iterable

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
    Forgotten,
    Redone,
    TurnBegun,
)
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.collected import Piece, collected
from rlboost_jax.manager.state.instances import Instance
from rlboost_jax.manager.state.restored import restore_answer, restore_cuts, restore_tokens
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.server_names import identity
from rlboost_jax.manager.state.token_rows import TokenRows
from rlboost_jax.messages import BeginBatch, ExtendBatch, pack_ids
from rlboost_jax.sequences.endings import kept, stop_positions
from rlboost_jax.sequences.identities import Batch

LedgerEntry = (
    BatchOpened
    | BatchResumed
    | TurnBegun
    | BatchExtended
    | Collected
    | CollectedRouted
    | Redone
    | Answered
    | Counted
    | BatchClosed
    | Forgotten
)
GAP = Batch(-1)  # in a journal, the batch that counts between two batches are filed under


class Ledger:
    """Batches and their rollouts. Open ones are being worked on, the others are kept.

    Attributes:
        open: by number, the oldest first.
        active: the oldest of them, which the learner trains on.
        lagging: whether any of them is sampled from an earlier version than its own number.
        gap: counts of the time without an open batch, for the one that follows.
    """

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.batches: dict[Batch, BatchRecord] = {}
        self.open: dict[Batch, BatchRecord] = {}
        self.active: BatchRecord | None = None
        self.lagging = False
        self.gap = Books()
        self._requests = 0

    def works_on(self, batch: BatchRecord) -> bool:
        """Whether a batch is open."""
        return self.open.get(batch.begin.batch) is batch

    @property
    def newest_token_at(self) -> float:
        """When the newest response of an open batch ended; -inf: none has."""
        open_ = self.open.values()
        return max((b.last_token_at for b in open_ if b.num_finished), default=-math.inf)

    @property
    def books(self) -> Books:
        """Counts of the oldest open batch, which also takes what belongs to no batch."""
        active = self.active
        return self.gap if active is None else active.books

    @property
    def kept(self) -> tuple[Batch, ...]:
        return tuple(sorted(self.batches))

    def still_open(self, begin: BeginBatch) -> tuple[Batch, ...]:
        """Earlier batches that stay open when this one is begun.

        Its version counts the updates that were made, so all batches before that are over. With
        a lag, that of the last of them may still have to be reported.
        """
        over = begin.version - (begin.version < begin.batch)
        return tuple(number for number in self.open if over <= number < begin.batch)

    def begin(
        self, begin: BeginBatch, now: float, still_open: Collection[Batch] = ()
    ) -> tuple[BatchRecord, bool]:
        """Open a batch. True: its tokens were still here.

        A batch that was begun with something else is cancelled with all later ones, and so are
        earlier ones that were left unfinished. Later ones are kept, but open no longer: a trainer
        that begins a batch again begins those that follow again, too.

        Args:
            still_open: earlier ones that stay open.
        """
        batch = self.batches.get(begin.batch)
        resumed = batch is not None and batch.same_work(begin)
        # What is cancelled now is counted with the oldest, which may be the one that begins.
        self._open({n: b for n, b in self.open.items() if n in still_open and n < begin.batch})
        if batch is None or not resumed:
            if batch is not None:
                self.cancel(s for s in self.kept if s >= begin.batch)
            batch = BatchRecord(begin, now)
        earlier = [s for s in self.kept if s < begin.batch and s not in self.open]
        self.cancel(s for s in earlier if not self.batches[s].finished)
        self.batches[begin.batch] = batch
        self._open({**self.open, begin.batch: batch})
        batch.resume(resumed)
        if batch is self.active:
            batch.books.merge(self.gap)
            self.gap = Books()
        batch.ask_for(begin.prompts)  # of a closed batch, those that were dropped
        staying = tuple(n for n in self.open if n < begin.batch)
        if resumed:
            self._outbox.keep(BatchResumed(batch=begin.batch, at=now, still_open=staying))
        else:
            self._outbox.keep(BatchOpened(begin=begin, at=now, still_open=staying))
        return batch, resumed

    def turn(self, batch: BatchRecord, now: float) -> None:
        """Start the clock of an open batch that is now the oldest."""
        batch.begin_at(now)
        self._outbox.keep(TurnBegun(batch=batch.begin.batch, at=now))

    def extend(self, batch: BatchRecord, extend: ExtendBatch) -> None:
        """Add the prompts that a batch does not have yet."""
        if batch.ask_for(extend.prompts, extend.samples, extend.sampling):
            self._outbox.keep(BatchExtended(extend=extend))

    def cancel(self, numbers: Iterable[Batch]) -> list[BatchRecord]:
        """Forget batches; all their tokens are lost. Held rollouts stay with their holders,
        whose answers to `Release` are still to come.
        """
        cancelled = [self.batches.pop(number) for number in tuple(numbers)]
        for batch in cancelled:
            self._close(batch.begin.batch)
            self.books.merge(batch.cancel())
        return cancelled

    def close(self, batch: BatchRecord) -> None:
        """Close a batch whose update was applied: unfinished responses are lost, others kept."""
        batch.drop_unfinished()
        self._close(batch.begin.batch)
        self._outbox.keep(BatchClosed(batch=batch.begin.batch))

    def forget(self, committed: Batch) -> list[BatchRecord]:
        """Drop the batches up to `committed`; the unfinished ones among them count as cancelled."""
        done = [s for s in self.kept if s <= committed]
        unfinished = self.cancel(s for s in done if not self.batches[s].finished)
        for number in done:
            self.batches.pop(number, None)
            self._close(number)
        self._outbox.keep(Forgotten(committed=committed))
        return unfinished

    def redo(self, batch: BatchRecord, cuts: dict[Rollout, int]) -> None:
        """Cut rollouts to their first tokens, over all their sequences; dormant ones wait again."""
        if not cuts:
            return
        for rollout, length in cuts.items():
            batch.books.lose(rollout.sequences.sampled_from(length))
            dormant = rollout.dormant
            batch.cut(rollout, length)
            if dormant:
                batch.wait(rollout)
        self._outbox.keep(
            Redone(
                batch=batch.begin.batch,
                samples=pack_ids([rollout.sample for rollout in cuts]),
                lengths=pack_ids(list(cuts.values())),
            )
        )

    def answer(
        self,
        batch: BatchRecord,
        rollout: Rollout,
        tokens: bytes,
        *,
        over: bool,
        prompt: bytes = b"",
    ) -> None:
        """Apply the environment's answer to a parked rollout: it continues; or its sequence ends,
        and another begins with `prompt`, or it is finished.
        """
        self._outbox.keep(
            Answered(
                batch=batch.begin.batch,
                sample=rollout.sample,
                attempt=rollout.sequences.attempt,
                turn=rollout.transcript.turn,
                tokens=tokens,
                over=over,
                sequence=rollout.sequences.work.sequence,
                prompt=prompt,
            )
        )
        batch.answer(rollout, tokens, over=over, prompt=prompt)

    def snapshot(self) -> list[tuple[Batch, bool, Books]]:
        """Each batch, whether it is the active one, and its counts; last the gap, as batch -1."""
        active, batches = self.active, self.batches.items()
        counts = [(number, batch is active, batch.books) for number, batch in batches]
        counts.append((GAP, active is None, self.gap))
        return counts

    def restore(self, entry: LedgerEntry, now: float) -> None:
        """Apply a journal entry again. Nothing is held yet; what does not fit is left out: the
        tokens before it were lost with a part of the journal.
        """
        match entry:
            case BatchOpened(begin=begin, at=at, still_open=still_open):
                known = self.batches.get(begin.batch)
                if known is not None and known.same_work(begin):
                    # Nothing was known of it: that it had been forgotten was lost on a full disk.
                    del self.batches[begin.batch]
                self.begin(begin, min(at, now), still_open)
            case BatchResumed(batch=number, at=at, still_open=still_open) if number in self.batches:
                before, batch = self.active, self.batches[number]
                self.begin(batch.begin, now, still_open)
                if batch is self.active and batch is not before:
                    batch.begin_at(min(at, now))
            case TurnBegun(batch=number, at=at) if number in self.open:
                self.open[number].begin_at(min(at, now))
            case BatchExtended(extend=extend) if extend.batch in self.batches:
                self.extend(self.batches[extend.batch], extend)
            case Collected(batch=number) | CollectedRouted(batch=number) if number in self.batches:
                restore_tokens(self.batches[number], entry, now)
            case Redone(batch=number) if number in self.batches:
                restore_cuts(self.batches[number], entry)
            case Answered(batch=number) if number in self.batches:
                restore_answer(self.batches[number], entry)
            case Counted(batch=number, books=books):
                if number == GAP:
                    self.gap = books.copy()
                elif number in self.batches:
                    self.batches[number].recount(books.copy())
            case BatchClosed(batch=number):
                if number in self.open:
                    self.close(self.open[number])
            case Forgotten(committed=committed):
                self.forget(committed)

    def restored(self, in_flight: Counted | None) -> None:
        """End the recovery: no instance holds anything, and tokens in flight are lost.

        Args:
            in_flight: says how many those were; None: nothing is known of it.
        """
        for batch in self.batches.values():
            batch.requeue()
            batch.settle()
            batch.resume(True)
        if in_flight is not None:
            self.books.wasted(in_flight.in_flight_reserved, reserved=True)
            self.books.wasted(in_flight.in_flight_preemptible, reserved=False)

    def _open(self, batches: dict[Batch, BatchRecord]) -> None:
        """Set the open batches, and aggregates over them that every event needs."""
        self.open = batches
        self.active = next(iter(batches.values()), None)
        self.lagging = any(batch.begin.version < number for number, batch in batches.items())

    def _close(self, number: Batch) -> None:
        """Make sure that a batch is not open."""
        if number in self.open:
            self._open({n: batch for n, batch in self.open.items() if n != number})

    def next_request(self) -> int:
        self._requests = self._requests % 0xFFFFFFFF + 1
        return self._requests

    def receive(
        self,
        rows: TokenRows,
        version: int,
        instance: Instance,
        now: float,
    ) -> list[Rollout]:
        """Append the tokens of a batch to the rollouts that an instance holds.

        Tokens of others, of another version, of a cancelled batch or past the end of a
        turn are counted as lost. Returns the rollouts whose turn ended, cancelled ones too.
        """
        name, reserved, held = instance.name, instance.reserved, instance.held
        server = "" if reserved else identity(instance.hello)
        stops: dict[tuple[int, ...], list[int]] = {}  # where such ids are in this batch
        taken: dict[Batch, list[Piece]] = {}  # per batch, for the journal
        ended: list[Rollout] = []
        end = 0
        for row, (request_id, count) in enumerate(zip(rows.ids, rows.counts, strict=True)):
            start, end = end, end + count
            rollout = held.get(request_id)
            if rollout is None or rollout.dormant or rollout.batch.begin.version != version:
                self.books.wasted(count, reserved=reserved)
                continue
            batch, sequences = rollout.batch, rollout.sequences
            transcript, sampling = sequences.newest, sequences.sampling
            number = batch.begin.batch
            if sampling.stop_ids not in stops:
                stops[sampling.stop_ids] = stop_positions(rows.tokens, sampling.stop_ids)
            own = kept(start, count, room=transcript.room(sampling), stops=stops[sampling.stop_ids])
            if sampling.stops:
                own = transcript.own(rows.raw[4 * start : 4 * (start + own)], sampling)
            books = self.books if batch.cancelled else batch.books
            books.sampled(count, reserved=reserved)
            if batch.cancelled:
                books.lose(count)
            elif own < count:
                books.lose(count - own)
            if own:
                part, lead, routes = slice(4 * start, 4 * (start + own)), 0, b""
                if rows.routes:
                    lead = transcript.lead
                    route_bytes = len(rows.routes[row]) // (rows.leads[row] + count)
                    routes = rows.routes[row][: route_bytes * (rows.leads[row] + own)]
                if not batch.cancelled:
                    piece = (rollout.sample, sequences.num_tokens, part, lead, routes)
                    taken.setdefault(number, []).append(piece)
                rollout.take_in(rows.raw[part], rows.logprobs[part], name, routes)
            if transcript.turn_over(sampling):
                batch.end_turn(rollout)
                batch.token_at(now)
                ended.append(rollout)
        for number, pieces in taken.items():
            self._outbox.keep(collected(number, name, server, rows, pieces, now))
        return ended
