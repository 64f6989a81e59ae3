"""Every open request and its tokens, sample by sample.

Invariants:
- a rollout is waiting, held by one instance, finished, or its step is cancelled;
- each placement has a request id of its own, so tokens of an earlier placement are known
  as late, whoever sends them;
- a response is finished when its last token is a stop id or it has `max_tokens`: that is
  read off the tokens, and whatever follows is lost;
- a token is counted once as sampled, and once as lost unless its response is delivered.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.manager.accounts import Books
from rlboost_jax.manager.journal import (
    Collected,
    Forgotten,
    Redone,
    StepClosed,
    StepOpened,
    StepResumed,
)
from rlboost_jax.manager.outbox import Outbox
from rlboost_jax.messages import (
    BeginStep,
    FinishedRollout,
    GenerateRequest,
    TokenBatch,
    pack_counts,
    pack_ids,
    unpack_counts,
    unpack_ids,
)

MAX_LOGPROB = 1e-3  # nats; above 0 by more than rounding is no logarithm of a probability


class MalformedBatch(ValueError):
    """A token batch that contradicts itself. What to change: the server that sent it."""


class Rollout:
    """A response in the making."""

    __slots__ = (
        "asked_at",
        "attempt",
        "holder",
        "logprobs",
        "num_tokens",
        "parts",
        "previous",
        "prompt",
        "prompt_tokens",
        "releasing",
        "request_id",
        "result",
        "sample",
        "step",
        "tokens",
        "yielded",
    )

    def __init__(self, step: "Step", prompt: int, sample: int, prompt_tokens: bytes) -> None:
        self.step = step
        self.prompt = prompt
        self.sample = sample
        self.prompt_tokens = prompt_tokens
        self.tokens = bytearray()  # int32
        self.logprobs = bytearray()  # float32
        self.num_tokens = 0
        self.parts: list[tuple[str, int]] = []  # (instance, tokens that it sampled), in order
        self.holder = ""  # instance that has it now
        self.previous = ""  # instance that had it last
        self.request_id = 0  # of the present placement
        self.releasing = False  # asked back
        self.asked_at = 0.0  # … since then
        self.yielded = False  # the present placement has given tokens
        self.result: FinishedRollout | None = None
        self.attempt = 0  # how often tokens were given up

    @property
    def waiting(self) -> bool:
        return not self.holder and self.result is None

    @property
    def length(self) -> int:
        """Prompt and response so far, in tokens."""
        return len(self.prompt_tokens) // 4 + self.num_tokens

    def request(self) -> GenerateRequest:
        begin = self.step.begin
        return GenerateRequest(
            request_id=self.request_id,
            step=begin.step,
            prompt=self.prompt,
            sample=self.sample,
            version=begin.version,
            seed=begin.seed,
            prompt_tokens=self.prompt_tokens,
            response_tokens=bytes(self.tokens),
            sampling=begin.sampling,
        )

    def extend(self, tokens: bytes, logprobs: bytes, name: str) -> None:
        """Append what instance `name` sampled."""
        count = len(tokens) // 4
        self.tokens += tokens
        self.logprobs += logprobs
        self.num_tokens += count
        if self.parts and self.parts[-1][0] == name:
            self.parts[-1] = name, self.parts[-1][1] + count
        else:
            self.parts.append((name, count))

    def finish(self) -> None:
        begin = self.step.begin
        self.result = FinishedRollout(
            step=begin.step,
            prompt=self.prompt,
            sample=self.sample,
            tokens=bytes(self.tokens),
            logprobs=bytes(self.logprobs),
            versions=((begin.version, self.num_tokens),),
            instances=tuple(dict.fromkeys(name for name, _ in self.parts)),
            attempt=self.attempt,
        )
        self.tokens, self.logprobs = bytearray(), bytearray()  # the result has them
        self.step.num_finished += 1

    def cut(self, length: int) -> None:
        """Keep the first `length` tokens; the response is no longer finished."""
        self.attempt += 1
        if self.result is not None:
            self.tokens, self.logprobs = (
                bytearray(self.result.tokens),
                bytearray(self.result.logprobs),
            )
            self.result = None
            self.step.num_finished -= 1
        del self.tokens[4 * length :], self.logprobs[4 * length :]
        self.num_tokens, parts = length, self.parts
        self.parts = []
        for name, count in parts:
            kept = min(count, length)
            length -= kept
            if kept:
                self.parts.append((name, kept))

    def sampler_of(self, position: int) -> str:
        """The instance that sampled the token at a position of the response."""
        for name, count in self.parts:
            position -= count
            if position < 0:
                return name
        raise IndexError(f"sample {self.sample} has only {self.num_tokens} tokens")

    def first_of(self, name: str) -> int:
        """Position of the first token that instance `name` sampled; the length without one."""
        position = 0
        for sampler, count in self.parts:
            if sampler == name:
                break
            position += count
        return position


class Step:
    """The rollouts of one `BeginStep`."""

    def __init__(self, begin: BeginStep, now: float) -> None:
        self.begin = begin
        self.begun_at = now
        self.last_token_at = now
        self.cancelled = False
        self.num_finished = 0
        self.books = Books()
        self.stop_ids = np.asarray(begin.sampling.stop_ids, np.int32)
        self.rollouts = [
            Rollout(self, p.prompt, p.prompt * begin.group_size + place, p.tokens)
            for p in begin.prompts
            for place in range(begin.group_size)
        ]
        self._by_sample = {rollout.sample: rollout for rollout in self.rollouts}
        self._queue: list[tuple[bool, int, Rollout]] = []
        self.requeue()

    @property
    def finished(self) -> bool:
        return self.num_finished == len(self.rollouts)

    @property
    def tokens_delivered(self) -> int:
        return sum(r.num_tokens for r in self.rollouts if r.result is not None)

    def wait(self, rollout: Rollout) -> None:
        """Queue a rollout: those with tokens first, as they are nearest to the tail."""
        heapq.heappush(self._queue, (rollout.num_tokens == 0, rollout.sample, rollout))
        self.num_waiting += 1

    def take(self, count: int) -> list[Rollout]:
        """The next `count` of the queue, no longer in it."""
        self.num_waiting -= count
        return [heapq.heappop(self._queue)[2] for _ in range(count)]

    def waiting(self) -> Iterator[Rollout]:
        """In queue order, without taking them."""
        return (entry[2] for entry in sorted(self._queue, key=lambda entry: entry[:2]))

    def rollout_of(self, sample: int) -> Rollout | None:
        return self._by_sample.get(sample)

    def requeue(self) -> None:
        """Let all that is not finished wait, for nobody holds anything."""
        self._queue, self.num_waiting = [], 0
        for rollout in self.rollouts:
            if rollout.result is None:
                self.wait(rollout)

    def results(self) -> Iterator[FinishedRollout]:
        return (r.result for r in self.rollouts if r.result is not None)

    def same_work(self, begin: BeginStep) -> bool:
        """Whether the tokens kept here are tokens of `begin` too."""
        return self.begin == begin


class Rows:
    """A token batch taken apart and checked.

    Raises `MalformedBatch` if lengths disagree, a token is outside the vocabulary or a
    log-probability is not one.
    """

    __slots__ = ("counts", "ids", "logprobs", "num_tokens", "raw", "tokens")

    def __init__(self, batch: TokenBatch, vocab_size: int) -> None:
        ids, counts = _array(batch.request_ids, "<u4"), _array(batch.counts, "<u2")
        self.tokens, logprobs = _array(batch.tokens, "<i4"), _array(batch.logprobs, "<f4")
        self.num_tokens = len(self.tokens)
        total = int(counts.sum(dtype=np.int64))
        if len(ids) != len(counts) or not total == self.num_tokens == len(logprobs):
            raise MalformedBatch(
                f"{len(ids)} rows, {len(counts)} counts adding up to {total}, "
                f"{self.num_tokens} tokens, {len(logprobs)} log-probabilities"
            )
        if min(batch.in_flight, batch.running, batch.waiting, batch.prefilled_again) < 0:
            raise MalformedBatch("a negative count")
        if self.num_tokens:
            low, high = int(self.tokens.min()), int(self.tokens.max())
            if low < 0 or high >= vocab_size:
                raise MalformedBatch(f"token {low if low < 0 else high} of 0..{vocab_size - 1}")
            if not (np.isfinite(logprobs).all() and float(logprobs.max()) <= MAX_LOGPROB):
                raise MalformedBatch("a log-probability that is above 0 or not finite")
        self.ids: list[int] = ids.tolist()
        self.counts: list[int] = counts.tolist()
        self.raw, self.logprobs = batch.tokens, batch.logprobs


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
        step.books.add(self.gap)
        self.gap = Books()
        if resumed:
            self._outbox.keep(StepResumed(step=begin.step, at=now))
        else:
            self._outbox.keep(StepOpened(begin=begin, at=now))
        return step, resumed

    def cancel(self, numbers: Iterable[int]) -> list[Step]:
        """Forget steps; all their tokens are lost. Held rollouts stay with their holders,
        whose answers to `Release` are still to come."""
        cancelled = [self.steps.pop(number) for number in tuple(numbers)]
        for step in cancelled:
            step.cancelled = True
            if step is self.active:
                self.active = None
            books, step.books = step.books, Books()
            books.lost = books.generated
            self.books.add(books)
        return cancelled

    def close(self, step: Step) -> None:
        """The update of a step was applied: what is unfinished is lost, the rest is kept."""
        for rollout in step.rollouts:
            if rollout.result is None:
                step.books.lost += rollout.num_tokens
        if not step.finished:
            step.cancelled = True
            del self.steps[step.begin.step]
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
            step.books.lost += rollout.num_tokens - length
            finished = rollout.result is not None
            rollout.cut(length)
            if finished:
                step.wait(rollout)
        self._outbox.keep(
            Redone(
                step=step.begin.step,
                samples=pack_ids([rollout.sample for rollout in cuts]),
                lengths=pack_ids(list(cuts.values())),
            )
        )

    def replay(self, entry: Collected | Redone, now: float) -> None:
        """Do again what a journal tells. Nothing is held yet; what does not fit is left out:
        the tokens before it were lost with a part of the journal."""
        step = self.steps.get(entry.step)
        if step is None:
            return
        if isinstance(entry, Redone):
            ids, lengths = unpack_ids(entry.samples).tolist(), unpack_ids(entry.lengths).tolist()
            for sample, length in zip(ids, lengths, strict=True):
                rollout = step.rollout_of(sample)
                if rollout is not None and length < rollout.num_tokens:
                    rollout.cut(length)
            return
        step.last_token_at = max(step.last_token_at, min(entry.at, now))
        end = 0
        for sample, start, count in zip(
            unpack_ids(entry.samples).tolist(),
            unpack_ids(entry.starts).tolist(),
            unpack_counts(entry.counts).tolist(),
            strict=True,
        ):
            part = slice(4 * end, 4 * (end + count))
            end += count
            rollout = step.rollout_of(sample)
            if rollout is None or rollout.result is not None or rollout.num_tokens != start:
                continue
            rollout.extend(entry.tokens[part], entry.logprobs[part], entry.instance)
            last = int.from_bytes(entry.tokens[part][-4:], "little")
            limit = step.begin.sampling.max_tokens
            if rollout.num_tokens == limit or last in step.begin.sampling.stop_ids:
                rollout.finish()

    def next_request(self) -> int:
        self._requests = self._requests % 0xFFFFFFFF + 1
        return self._requests

    def receive(
        self,
        rows: Rows,
        version: int,
        held: dict[int, Rollout],
        name: str,
        now: float,
        *,
        reserved: bool,
    ) -> list[Rollout]:
        """Append the tokens of a batch to the rollouts that `name` holds.

        Tokens of others, of another version, of a cancelled step or past the end of a
        response are counted as lost. Returns the rollouts that ended, cancelled ones too.
        """
        stops: dict[int, list[int]] = {}  # per step, where stop ids are in this batch
        taken: dict[int, list[tuple[int, int, int, int]]] = {}  # per step, for the journal
        ended: list[Rollout] = []
        end = 0
        for request_id, count in zip(rows.ids, rows.counts, strict=True):
            start, end = end, end + count
            rollout = held.get(request_id)
            if (
                rollout is None
                or rollout.result is not None
                or rollout.step.begin.version != version
            ):
                self.books.wasted(count, reserved=reserved)
                continue
            step = rollout.step
            begin = step.begin
            number = begin.step
            if number not in stops:
                stops[number] = _positions(rows.tokens, step.stop_ids)
            room = begin.sampling.max_tokens - rollout.num_tokens
            kept = count if count < room else room
            done = kept == room
            for position in stops[number]:
                if start <= position < start + kept:
                    kept, done = position - start + 1, True
                    break
            books = self.books if step.cancelled else step.books
            books.sampled(count, reserved=reserved)
            books.lost += count if step.cancelled else count - kept
            if kept:
                row = (rollout.sample, rollout.num_tokens, start, kept)
                if not step.cancelled:
                    taken.setdefault(number, []).append(row)
                part = slice(4 * start, 4 * (start + kept))
                rollout.extend(rows.raw[part], rows.logprobs[part], name)
                rollout.yielded = True
            if done:
                rollout.finish()
                ended.append(rollout)
        for number, pieces in taken.items():
            self._outbox.keep(_collected(number, name, rows, pieces, now))
        return ended


def _collected(
    step: int, name: str, rows: Rows, pieces: list[tuple[int, int, int, int]], now: float
) -> Collected:
    """Args:
    pieces: (sample, tokens it had before, first token in the batch, number of tokens).
    """
    samples, starts, _, counts = zip(*pieces, strict=True)
    parts = [slice(4 * first, 4 * (first + count)) for _, _, first, count in pieces]
    return Collected(
        step=step,
        instance=name,
        samples=pack_ids(samples),
        starts=pack_ids(starts),
        counts=pack_counts(counts),
        tokens=b"".join([rows.raw[part] for part in parts]),
        logprobs=b"".join([rows.logprobs[part] for part in parts]),
        at=now,
    )


def _positions(tokens: NDArray[np.int32], stop_ids: NDArray[np.int32]) -> list[int]:
    where: list[int] = np.flatnonzero((tokens[:, None] == stop_ids).any(axis=1)).tolist()
    return where


def _array(data: bytes, dtype: str) -> NDArray[Any]:
    try:
        return np.frombuffer(data, dtype)
    except ValueError as error:
        raise MalformedBatch(f"{len(data)} bytes are no whole number of {dtype}") from error
