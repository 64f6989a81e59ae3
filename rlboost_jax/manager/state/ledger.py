"""Every open request and its tokens, sample by sample.

Invariants:
- a rollout is waiting, held by one instance, finished, or its step is cancelled;
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
    Collected,
    CollectedRouted,
    Counted,
    Forgotten,
    Redone,
    StepClosed,
    StepExtended,
    StepOpened,
    StepResumed,
)
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.manager.state.rollouts import Rollout, Step
from rlboost_jax.manager.state.token_rows import TokenRows
from rlboost_jax.messages import (
    BeginStep,
    ExtendStep,
    pack_counts,
    pack_ids,
    unpack_counts,
    unpack_ids,
)
from rlboost_jax.sequences.endings import kept, stop_positions

# Of a rollout in a batch: its sample, tokens it had before, where the bytes of its new ones are,
# the number of routes before theirs, and all of these routes.
Piece = tuple[int, int, slice, int, bytes]
LedgerEntry = (
    StepOpened | StepResumed | StepExtended | Collected | Redone | Counted | StepClosed | Forgotten
)
GAP = -1  # in a journal, the step that counts between two steps are filed under


class Ledger:
    """Steps and their rollouts. The active one is being worked on, others are kept."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.steps: dict[int, Step] = {}
        self.active: Step | None = None
        self.gap = Books()  # between two steps; counted with the one that follows
        self._requests = 0

    @property
    def books(self) -> Books:
        return self.active.books if self.active else self.gap

    @property
    def kept(self) -> tuple[int, ...]:
        return tuple(sorted(self.steps))

    def begin(self, begin: BeginStep, now: float) -> tuple[Step, bool]:
        """Make a step active. True: its tokens were still here.

        A step that was begun with something else is cancelled with all later ones, and so
        are earlier ones that were left unfinished.
        """
        step = self.steps.get(begin.step)
        resumed = step is not None and step.same_work(begin)
        self.active = None  # what is cancelled now is counted with the step that begins
        if step is None or not resumed:
            if step is not None:
                self.cancel(s for s in self.kept if s >= begin.step)
            step = Step(begin, now)
        self.cancel(s for s in self.kept if s < begin.step and not self.steps[s].finished)
        self.steps[begin.step] = self.active = step
        step.books.merge(self.gap)
        self.gap = Books()
        step.ask_for(begin.prompts)  # of a closed step, those that were dropped
        if resumed:
            self._outbox.keep(StepResumed(step=begin.step, at=now))
        else:
            self._outbox.keep(StepOpened(begin=begin, at=now))
        return step, resumed

    def extend(self, step: Step, extend: ExtendStep) -> None:
        """Add what is not there yet."""
        if step.ask_for(extend.prompts, extend.samples, extend.sampling):
            self._outbox.keep(StepExtended(extend=extend))

    def cancel(self, numbers: Iterable[int]) -> list[Step]:
        """Forget steps; all their tokens are lost. Held rollouts stay with their holders,
        whose answers to `Release` are still to come."""
        cancelled = [self.steps.pop(number) for number in tuple(numbers)]
        for step in cancelled:
            if step is self.active:
                self.active = None
            self.books.merge(step.cancel())
        return cancelled

    def close(self, step: Step) -> None:
        """The update of a step was applied: what is unfinished is lost, the rest is kept."""
        step.drop_unfinished()
        self.active = None
        self._outbox.keep(StepClosed(step=step.begin.step))

    def forget(self, committed: int) -> list[Step]:
        """Drop the steps up to `committed`; the unfinished of them count as cancelled."""
        done = [s for s in self.kept if s <= committed]
        unfinished = self.cancel(s for s in done if not self.steps[s].finished)
        for number in done:
            step = self.steps.pop(number, None)
            if step is not None and step is self.active:
                self.active = None
        self._outbox.keep(Forgotten(committed=committed))
        return unfinished

    def redo(self, step: Step, cuts: dict[Rollout, int]) -> None:
        """Give up all but the first tokens of some rollouts. Finished ones wait again."""
        if not cuts:
            return
        for rollout, length in cuts.items():
            step.books.lose(rollout.num_tokens - length)
            finished = rollout.result is not None
            step.cut(rollout, length)
            if finished:
                step.wait(rollout)
        self._outbox.keep(
            Redone(
                step=step.begin.step,
                samples=pack_ids([rollout.sample for rollout in cuts]),
                lengths=pack_ids(list(cuts.values())),
            )
        )

    def snapshot(self) -> dict[int, tuple[bool, Books]]:
        """By step, its counts and whether it is the active one; those of the gap as step -1."""
        active, steps = self.active, self.steps.items()
        counts = {number: (step is active, step.books) for number, step in steps}
        counts[GAP] = active is None, self.gap
        return counts

    def restore(self, entry: LedgerEntry, now: float) -> None:
        """Do again what a journal tells. Nothing is held yet; what does not fit is left out:
        the tokens before it were lost with a part of the journal."""
        match entry:
            case StepOpened(begin=begin, at=at):
                self.begin(begin, min(at, now))
            case StepResumed(step=number, at=at) if number in self.steps:
                before, step = self.active, self.steps[number]
                self.begin(step.begin, now)
                if step is not before:
                    step.begin_at(min(at, now))
            case StepExtended(extend=extend) if extend.step in self.steps:
                self.extend(self.steps[extend.step], extend)
            case Collected(step=number) if number in self.steps:
                self._restore_tokens(self.steps[number], entry, now)
            case Redone(step=number) if number in self.steps:
                self._restore_cuts(self.steps[number], entry)
            case Counted(step=number, books=books):
                if number == GAP:
                    self.gap = books.copy()
                elif number in self.steps:
                    self.steps[number].recount(books.copy())
            case StepClosed(step=number):
                if self.active is not None and self.active.begin.step == number:
                    self.close(self.active)
            case Forgotten(committed=committed):
                self.forget(committed)

    def restored(self, in_flight: Counted | None) -> None:
        """All that a journal tells has been restored: nobody holds anything, and what was under
        way is lost.

        Args:
            in_flight: says how much that was; None: nothing is known of it.
        """
        for step in self.steps.values():
            step.requeue()
            step.settle()
        if in_flight is not None:
            self.books.wasted(in_flight.in_flight_reserved, reserved=True)
            self.books.wasted(in_flight.in_flight_preemptible, reserved=False)

    def _restore_cuts(self, step: Step, entry: Redone) -> None:
        ids, lengths = unpack_ids(entry.samples).tolist(), unpack_ids(entry.lengths).tolist()
        for sample, length in zip(ids, lengths, strict=True):
            rollout = step.rollout_of(sample)
            if rollout is not None and length < rollout.num_tokens:
                step.cut(rollout, length)

    def _restore_tokens(self, step: Step, entry: Collected, now: float) -> None:
        step.token_at(min(entry.at, now))
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
            rollout = step.rollout_of(sample)
            if rollout is None or rollout.result is not None or rollout.num_tokens != start:
                continue
            rollout.take_in(entry.tokens[part], entry.logprobs[part], entry.instance, routes)
            if rollout.complete:
                step.finish(rollout)

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

        Tokens of others, of another version, of a cancelled step or past the end of a
        response are counted as lost. Returns the rollouts that ended, cancelled ones too.
        """
        stops: dict[tuple[int, ...], list[int]] = {}  # where such ids are in this batch
        taken: dict[int, list[Piece]] = {}  # per step, for the journal
        ended: list[Rollout] = []
        end = 0
        for row, (request_id, count) in enumerate(zip(rows.ids, rows.counts, strict=True)):
            start, end = end, end + count
            rollout = held.get(request_id)
            if (
                rollout is None
                or rollout.result is not None
                or rollout.step.begin.version != version
            ):
                self.books.wasted(count, reserved=reserved)
                continue
            step, sampling = rollout.step, rollout.sampling
            number = step.begin.step
            if sampling.stop_ids not in stops:
                stops[sampling.stop_ids] = stop_positions(rows.tokens, sampling.stop_ids)
            room = sampling.max_tokens - rollout.num_tokens
            own = kept(start, count, room=room, stops=stops[sampling.stop_ids])
            books = self.books if step.cancelled else step.books
            books.sampled(count, reserved=reserved)
            if step.cancelled:
                books.lose(count)
            elif own < count:
                books.lose(count - own)
            if own:
                part, routes = slice(4 * start, 4 * (start + own)), b""
                if rows.routes:
                    route_bytes = len(rows.routes[row]) // (rows.leads[row] + count)
                    routes = rows.routes[row][: route_bytes * (rows.leads[row] + own)]
                if not step.cancelled:
                    piece = (rollout.sample, rollout.num_tokens, part, rollout.lead, routes)
                    taken.setdefault(number, []).append(piece)
                rollout.take_in(rows.raw[part], rows.logprobs[part], name, routes)
            if rollout.complete:
                step.finish(rollout)
                step.token_at(now)
                ended.append(rollout)
        for number, pieces in taken.items():
            self._outbox.keep(_collected(number, name, rows, pieces, now))
        return ended


def _collected(step: int, name: str, rows: TokenRows, pieces: list[Piece], now: float) -> Collected:
    samples, starts, parts, leads, routes = zip(*pieces, strict=True)
    fields: dict[str, Any] = {
        "step": step,
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
