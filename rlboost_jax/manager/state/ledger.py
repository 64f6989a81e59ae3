"""Every open request and its tokens, sample by sample.

Invariants:
- a rollout is waiting, held by one instance, finished, or its batch is cancelled;
- each placement has a request id of its own, so tokens of an earlier placement are known
  as late, whoever sends them;
- a response is finished when its last token is a stop id or it has `max_tokens`: that is
  read off the tokens, and whatever follows is lost;
- a token is counted once as sampled, and once as lost unless its response is delivered.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.journal import (
    BatchClosed,
    BatchExtended,
    BatchOpened,
    BatchResumed,
    Collected,
    CollectedRouted,
    Counted,
    Forgotten,
    Redone,
)
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.rollouts import BatchRecord, Rollout
from rlboost_jax.manager.state.token_rows import TokenRows
from rlboost_jax.messages import (
    BeginBatch,
    ExtendBatch,
    pack_counts,
    pack_ids,
    unpack_counts,
    unpack_ids,
)
from rlboost_jax.sequences.endings import kept, stop_positions
from rlboost_jax.sequences.identities import Batch

# Of a rollout in a batch: its sample, tokens it had before, where the bytes of its new ones are,
# the number of routes before theirs, and all of these routes.
Piece = tuple[int, int, slice, int, bytes]
LedgerEntry = (
    BatchOpened
    | BatchResumed
    | BatchExtended
    | Collected
    | Redone
    | Counted
    | BatchClosed
    | Forgotten
)
GAP = Batch(-1)  # in a journal, the batch that counts between two batches are filed under


class Ledger:
    """Steps and their rollouts. The active one is being worked on, others are kept."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.batches: dict[Batch, BatchRecord] = {}
        self.active: BatchRecord | None = None
        self.gap = Books()  # between two batches; counted with the one that follows
        self._requests = 0

    @property
    def books(self) -> Books:
        return self.active.books if self.active else self.gap

    @property
    def kept(self) -> tuple[Batch, ...]:
        return tuple(sorted(self.batches))

    def begin(self, begin: BeginBatch, now: float) -> tuple[BatchRecord, bool]:
        """Make a batch active. True: its tokens were still here.

        A batch that was begun with something else is cancelled with all later ones, and so
        are earlier ones that were left unfinished.
        """
        batch = self.batches.get(begin.batch)
        resumed = batch is not None and batch.same_work(begin)
        self.active = None  # what is cancelled now is counted with the batch that begins
        if batch is None or not resumed:
            if batch is not None:
                self.cancel(s for s in self.kept if s >= begin.batch)
            batch = BatchRecord(begin, now)
        self.cancel(s for s in self.kept if s < begin.batch and not self.batches[s].finished)
        self.batches[begin.batch] = self.active = batch
        batch.books.merge(self.gap)
        self.gap = Books()
        batch.ask_for(begin.prompts)  # of a closed batch, those that were dropped
        if resumed:
            self._outbox.keep(BatchResumed(batch=begin.batch, at=now))
        else:
            self._outbox.keep(BatchOpened(begin=begin, at=now))
        return batch, resumed

    def extend(self, batch: BatchRecord, extend: ExtendBatch) -> None:
        """Add what is not there yet."""
        if batch.ask_for(extend.prompts, extend.samples, extend.sampling):
            self._outbox.keep(BatchExtended(extend=extend))

    def cancel(self, numbers: Iterable[Batch]) -> list[BatchRecord]:
        """Forget batches; all their tokens are lost. Held rollouts stay with their holders,
        whose answers to `Release` are still to come."""
        cancelled = [self.batches.pop(number) for number in tuple(numbers)]
        for batch in cancelled:
            if batch is self.active:
                self.active = None
            self.books.merge(batch.cancel())
        return cancelled

    def close(self, batch: BatchRecord) -> None:
        """The update of a batch was applied: what is unfinished is lost, the rest is kept."""
        batch.drop_unfinished()
        self.active = None
        self._outbox.keep(BatchClosed(batch=batch.begin.batch))

    def forget(self, committed: Batch) -> list[BatchRecord]:
        """Drop the batches up to `committed`; the unfinished of them count as cancelled."""
        done = [s for s in self.kept if s <= committed]
        unfinished = self.cancel(s for s in done if not self.batches[s].finished)
        for number in done:
            batch = self.batches.pop(number, None)
            if batch is not None and batch is self.active:
                self.active = None
        self._outbox.keep(Forgotten(committed=committed))
        return unfinished

    def redo(self, batch: BatchRecord, cuts: dict[Rollout, int]) -> None:
        """Give up all but the first tokens of some rollouts. Finished ones wait again."""
        if not cuts:
            return
        for rollout, length in cuts.items():
            batch.books.lose(rollout.num_tokens - length)
            finished = rollout.result is not None
            batch.cut(rollout, length)
            if finished:
                batch.wait(rollout)
        self._outbox.keep(
            Redone(
                batch=batch.begin.batch,
                samples=pack_ids([rollout.sample for rollout in cuts]),
                lengths=pack_ids(list(cuts.values())),
            )
        )

    def snapshot(self) -> dict[Batch, tuple[bool, Books]]:
        """By batch, its counts and whether it is the active one; those of the gap as batch -1."""
        active, batches = self.active, self.batches.items()
        counts = {number: (batch is active, batch.books) for number, batch in batches}
        counts[GAP] = active is None, self.gap
        return counts

    def restore(self, entry: LedgerEntry, now: float) -> None:
        """Do again what a journal tells. Nothing is held yet; what does not fit is left out:
        the tokens before it were lost with a part of the journal."""
        match entry:
            case BatchOpened(begin=begin, at=at):
                self.begin(begin, min(at, now))
            case BatchResumed(batch=number, at=at) if number in self.batches:
                before, batch = self.active, self.batches[number]
                self.begin(batch.begin, now)
                if batch is not before:
                    batch.begin_at(min(at, now))
            case BatchExtended(extend=extend) if extend.batch in self.batches:
                self.extend(self.batches[extend.batch], extend)
            case Collected(batch=number) if number in self.batches:
                self._restore_tokens(self.batches[number], entry, now)
            case Redone(batch=number) if number in self.batches:
                self._restore_cuts(self.batches[number], entry)
            case Counted(batch=number, books=books):
                if number == GAP:
                    self.gap = books.copy()
                elif number in self.batches:
                    self.batches[number].recount(books.copy())
            case BatchClosed(batch=number):
                if self.active is not None and self.active.begin.batch == number:
                    self.close(self.active)
            case Forgotten(committed=committed):
                self.forget(committed)

    def restored(self, in_flight: Counted | None) -> None:
        """All that a journal tells has been restored: nobody holds anything, and what was under
        way is lost.

        Args:
            in_flight: says how much that was; None: nothing is known of it.
        """
        for batch in self.batches.values():
            batch.requeue()
            batch.settle()
        if in_flight is not None:
            self.books.wasted(in_flight.in_flight_reserved, reserved=True)
            self.books.wasted(in_flight.in_flight_preemptible, reserved=False)

    def _restore_cuts(self, batch: BatchRecord, entry: Redone) -> None:
        ids, lengths = unpack_ids(entry.samples).tolist(), unpack_ids(entry.lengths).tolist()
        for sample, length in zip(ids, lengths, strict=True):
            rollout = batch.rollout_of(sample)
            if rollout is not None and length < rollout.num_tokens:
                batch.cut(rollout, length)

    def _restore_tokens(self, batch: BatchRecord, entry: Collected, now: float) -> None:
        batch.token_at(min(entry.at, now))
        end = 0
        counts = unpack_counts(entry.counts).tolist()
        for sample, start, count, routes in zip(
            unpack_ids(entry.samples).tolist(),
            unpack_ids(entry.starts).tolist(),
            counts,
            _routes(entry, counts),
            strict=True,
        ):
            part = slice(4 * end, 4 * (end + count))
            end += count
            rollout = batch.rollout_of(sample)
            if rollout is None or rollout.result is not None or rollout.num_tokens != start:
                continue
            rollout.take_in(entry.tokens[part], entry.logprobs[part], entry.instance, routes)
            if rollout.complete:
                batch.finish(rollout)

    def next_request(self) -> int:
        self._requests = self._requests % 0xFFFFFFFF + 1
        return self._requests

    def receive(
        self,
        rows: TokenRows,
        version: int,
        held: Mapping[int, Rollout],
        name: str,
        now: float,
        *,
        reserved: bool,
    ) -> list[Rollout]:
        """Append the tokens of a batch to the rollouts that `name` holds.

        Tokens of others, of another version, of a cancelled batch or past the end of a
        response are counted as lost. Returns the rollouts that ended, cancelled ones too.
        """
        stops: dict[tuple[int, ...], list[int]] = {}  # where such ids are in this batch
        taken: dict[Batch, list[Piece]] = {}  # per batch, for the journal
        ended: list[Rollout] = []
        end = 0
        for row, (request_id, count) in enumerate(zip(rows.ids, rows.counts, strict=True)):
            start, end = end, end + count
            rollout = held.get(request_id)
            if (
                rollout is None
                or rollout.result is not None
                or rollout.batch.begin.version != version
            ):
                self.books.wasted(count, reserved=reserved)
                continue
            batch, sampling = rollout.batch, rollout.sampling
            number = batch.begin.batch
            if sampling.stop_ids not in stops:
                stops[sampling.stop_ids] = stop_positions(rows.tokens, sampling.stop_ids)
            room = sampling.max_tokens - rollout.num_tokens
            own = kept(start, count, room=room, stops=stops[sampling.stop_ids])
            books = self.books if batch.cancelled else batch.books
            books.sampled(count, reserved=reserved)
            if batch.cancelled:
                books.lose(count)
            elif own < count:
                books.lose(count - own)
            if own:
                part, routes = slice(4 * start, 4 * (start + own)), b""
                if rows.routes:
                    route_bytes = len(rows.routes[row]) // (rows.leads[row] + count)
                    routes = rows.routes[row][: route_bytes * (rows.leads[row] + own)]
                if not batch.cancelled:
                    piece = (rollout.sample, rollout.num_tokens, part, rollout.lead, routes)
                    taken.setdefault(number, []).append(piece)
                rollout.take_in(rows.raw[part], rows.logprobs[part], name, routes)
            if rollout.complete:
                batch.finish(rollout)
                batch.token_at(now)
                ended.append(rollout)
        for number, pieces in taken.items():
            self._outbox.keep(_collected(number, name, rows, pieces, now))
        return ended


def _collected(
    batch: int, name: str, rows: TokenRows, pieces: list[Piece], now: float
) -> Collected:
    samples, starts, parts, leads, routes = zip(*pieces, strict=True)
    fields: dict[str, Any] = {
        "batch": batch,
        "instance": name,
        "samples": pack_ids(samples),
        "starts": pack_ids(starts),
        "counts": pack_counts([(part.stop - part.start) // 4 for part in parts]),
        "tokens": b"".join([rows.raw[part] for part in parts]),
        "logprobs": b"".join([rows.logprobs[part] for part in parts]),
        "at": now,
    }
    if not rows.routes:
        return Collected(**fields)
    return CollectedRouted(**fields, leads=pack_ids(leads), routes=b"".join(routes))


def _routes(entry: Collected, counts: list[int]) -> list[bytes]:
    """Of each row of an entry."""
    if not isinstance(entry, CollectedRouted):
        return [b""] * len(counts)
    ends = np.cumsum(unpack_ids(entry.leads).astype(np.int64) + counts)
    ends *= len(entry.routes) // int(ends[-1])
    return [entry.routes[start:end] for start, end in itertools.pairwise([0, *ends.tolist()])]
