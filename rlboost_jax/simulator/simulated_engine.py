"""An engine in virtual time: slots, a cache of bounded size, a queue, decode steps in stretches.

Rollouts in slots advance together, a token per step, so that one number says how far they are.
Those that carry drafts have a second number, which grows by their expected tokens per step
(`EngineRates.tokens_a_step`): a rollout does as soon as a sibling has ended in the same engine.

A stretch is a run of steps in which nothing changes: it ends with the first response that
ends (rounded up to whole dispatches), when tokens are to be reported, or when the cache is full.
Whatever comes in between cuts it short at the step that is done by then.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rlboost_jax.simulator.rates import EngineRates

FULL = 0.95  # share of the cache up to which rollouts are admitted; the rest is for growth


@dataclass(slots=True)
class Row:
    """A rollout in an engine."""

    request_id: int
    group: tuple[int, int]  # (step, prompt): its members share the prompt's prefill
    prompt_tokens: int  # and what was given since
    length: int  # of the response when its turn is over
    done: int  # response tokens when it last entered, or left, a slot
    reported: int  # response tokens that have been reported
    since: float = 0  # its clock of the engine at that time
    end: float = 0  # its clock when it ends
    drafts: bool = False  # whether its clock is that of rollouts with drafts
    evicted: bool = False
    parks: int = -1  # its sample, if it may come back for another turn; -1: it will not


@dataclass(frozen=True, slots=True)
class NewTokens:
    row: Row
    tokens: int  # new ones
    ended: bool


class SimulatedEngine:
    """A simulated engine.

    Args:
        message_tokens: steps after which everything is reported at the latest.
    """

    def __init__(
        self, rates: EngineRates, *, slots: int, dispatch_tokens: int, message_tokens: int
    ) -> None:
        self._rates = rates
        self._slots, self._dispatch, self._message = slots, dispatch_tokens, message_tokens
        self.running: dict[int, Row] = {}  # oldest first
        self._queue: deque[Row] = deque()
        # (clock, request) of requests in slots, without and with drafts
        self._ends: dict[bool, list[tuple[float, int]]] = {False: [], True: []}
        self._groups: dict[tuple[int, int], int] = {}  # rollouts here, of each prompt
        self._drafting = 0  # rollouts in slots that carry drafts
        self._known: set[tuple[int, int]] = set()  # prompts with a response that ended here
        self._steps = 0
        self._drafted = 0.0  # the clock of rollouts with drafts
        self._pace = 1.0  # by which it goes on in a step
        self._begun = 0  # step count when the stretch began, and a dispatch with it
        self._reported_at = 0  # step count when everything was reported last
        self._context: float = 0  # tokens held in slots
        self._at = 0.0  # the time that `_steps` belongs to
        self._prefill = 0.0  # seconds of it that come before the next decode step
        self._stretch, self._seconds = 0, 0.0  # steps planned, and how long they take
        # Rollouts that may come back: tokens, others that pages were free for as they left, and
        # tokens that pages had been taken for by then. `rlboost_jax.engine.prefixes`, in tokens.
        self._left: dict[tuple[int, int], tuple[int, float, float]] = {}
        self._taken: float = 0
        self._seen_at = 0.0
        self.slot_seconds = 0.0  # of slots with a rollout in them
        self.prefilled = self.spared = 0  # tokens of rollouts that came with any sampled
        self.prefilled_again = 0  # tokens, because of evictions, since it was last asked
        self.spared_steps = 0.0  # of single rollouts, by drafts
        self.paused = False

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def queued(self) -> list[int]:
        """Requests that wait for a slot, in order."""
        return [row.request_id for row in self._queue]

    @property
    def held(self) -> int:
        return len(self.running) + len(self._queue)

    @property
    def due_at(self) -> float:
        """Time at which the stretch ends unless something happens before; inf: never."""
        if self.paused or not self.running:
            return math.inf
        return self._at + self._prefill + self._seconds

    def add(self, rows: Iterable[Row], now: float) -> None:
        self.advance(now)
        for row in rows:
            self._queue.append(row)
        self._plan(now)

    def remove(self, request_ids: Iterable[int], now: float) -> None:
        """Drop rollouts, whose tokens must have been reported before."""
        self.advance(now)
        gone = set(request_ids)
        for request_id in gone & self.running.keys():
            self._leave_slot(self.running.pop(request_id))
        if any(row.request_id in gone for row in self._queue):
            self._queue = deque(row for row in self._queue if row.request_id not in gone)
        self._plan(now)

    def pause(self, paused: bool, now: float) -> None:
        """Stop while the learner uses the chips, or resume."""
        self.advance(now)
        self.paused = paused
        self._at = now

    def advance(self, now: float) -> None:
        """Account for the steps done by now, whose tokens `tell` then reports."""
        self.slot_seconds += len(self.running) * (now - self._seen_at)
        self._seen_at = now
        if self.paused or not self.running:
            self._at = now
            return
        elapsed = now - self._at
        if elapsed < self._prefill:
            self._prefill -= elapsed
            self._at = now
            return
        share = (elapsed - self._prefill) / self._seconds if self._seconds else 1.0
        steps = min(self._stretch, int(self._stretch * share + 1e-6))
        seconds = self._seconds * steps / self._stretch if self._stretch else 0.0
        self._at += self._prefill + seconds
        self._prefill = 0.0
        self._take(steps)
        self._stretch -= steps
        self._seconds -= seconds

    def lose_dispatch(self, now: float) -> None:
        """Discard the tokens of the unfinished dispatch: the machine is lost with them."""
        self.advance(now)
        self._take(-((self._steps - self._begun) % self._dispatch))

    def report(self, now: float, *, everything: bool = False) -> list[NewTokens]:
        """Return the new tokens of rollouts that ended, and remove these; then continue.

        Of the others too, if everything is asked for or that was long ago: to tell every
        token as it comes would cost more than all else, and changes nothing.
        """
        reported = []
        for drafts in self._ends:
            reported += [NewTokens(row, row.length - row.reported, ended=True)
                         for row in self._ended(drafts)]  # fmt: skip
        for each in reported:
            self._learn(each.row.group)
        if everything or self._steps >= self._reported_at + self._message:
            self._reported_at = self._steps
            for row in self.running.values():
                self._count(row)
            for row in (*self.running.values(), *self._queue):
                if row.done > row.reported:
                    reported.append(NewTokens(row, row.done - row.reported, ended=False))
                    row.reported = row.done
        self._plan(now)
        return reported

    def forget(self) -> None:
        """Drop the reusable pages, which other weights make worthless, and texts of old batches."""
        self._left.clear()
        self._known &= {row.group for row in (*self.running.values(), *self._queue)}

    def _clock(self, row: Row) -> float:
        return self._drafted if row.drafts else self._steps

    def _yield(self) -> float:
        """Tokens of a decode step."""
        if not self._drafting:
            return len(self.running)
        return len(self.running) + self._drafting * (self._pace - 1)

    def _take(self, steps: int) -> None:
        """Account for decode steps, or for less of them."""
        tokens = steps * self._yield()
        self._steps += steps
        self._context += tokens
        self._taken += max(0, tokens)
        if self._drafting:
            self._drafted += steps * self._pace
            self.spared_steps += steps * self._drafting * (self._pace - 1)

    def _count(self, row: Row) -> None:
        """Count the whole tokens of a rollout in a slot."""
        tokens = int(self._clock(row) - row.since)
        row.done, row.since = row.done + tokens, row.since + tokens

    def _ended(self, drafts: bool) -> Iterator[Row]:
        """Take rollouts that have ended, without or with drafts, out of their slots."""
        ends, clock = self._ends[drafts], self._drafted if drafts else self._steps
        while ends and (ends[0][0] <= clock or self._stale(*ends[0])):
            end, request_id = heapq.heappop(ends)
            if not self._stale(end, request_id):
                row = self.running.pop(request_id)
                self._leave_slot(row)
                self._leave_pages(row)
                yield row

    def _learn(self, group: tuple[int, int]) -> None:
        """Let the siblings of a response that has ended carry drafts."""
        if not self._rates.most_drafts or group in self._known:
            return
        self._known.add(group)
        for row in self.running.values() if group in self._groups else ():
            if row.group == group:
                self._count(row)
                row.drafts, row.since = True, self._drafted
                self._drafting += 1
                self._await(row)

    def _await(self, row: Row) -> None:
        """Note when a rollout in a slot will end."""
        row.end = row.since + row.length - row.done
        heapq.heappush(self._ends[row.drafts], (row.end, row.request_id))

    def _leave_pages(self, row: Row) -> None:
        """Free the pages of a parked turn, whose contents may be reused."""
        if row.parks >= 0:
            tokens = row.prompt_tokens + row.length
            free = int(self._rates.kv_tokens) - self._context - tokens
            self._left[row.group[0], row.parks] = tokens, free, self._taken

    def _leave_slot(self, row: Row) -> None:
        self._context -= row.prompt_tokens + row.done + self._clock(row) - row.since
        self._drafting -= row.drafts
        self._groups[row.group] -= 1
        if not self._groups[row.group]:
            del self._groups[row.group]

    def _plan(self, now: float) -> None:
        """Fill the slots and begin a stretch of decode steps."""
        self._begun = self._steps
        if not self.running:
            self._at = max(self._at, now)
        while self._queue and len(self.running) < self._slots:
            row = self._queue[0]
            length = row.prompt_tokens + row.done
            if self.running and self._context + length > FULL * self._rates.kv_tokens:
                break
            self._queue.popleft()
            self._admit(row)
        while len(self.running) > 1 and self._room() < self._dispatch:
            self._evict(self.running.popitem()[1])
        batch = len(self.running)
        if not batch:
            self._stretch, self._seconds, self._prefill = 0, 0.0, 0.0
            return
        width = self._rates.drafts_each(batch, self._drafting, self._context)
        self._pace = self._rates.tokens_a_step(width)
        steps = min(self._steps_to_end(False), self._steps_to_end(True))
        steps = math.ceil(steps / self._dispatch) * self._dispatch
        quiet = self._reported_at + self._message - self._steps
        self._stretch = max(1, min(steps, quiet, max(self._room(), self._dispatch)))
        context = self._context + self._stretch * self._yield() / 2
        rows = batch + width * self._drafting
        self._seconds = self._stretch * self._rates.step_seconds(batch, context, rows=rows)

    def _steps_to_end(self, drafts: bool) -> float:
        """Decode steps until the first rollout ends, of those without or with drafts."""
        ends = self._ends[drafts]
        while ends and self._stale(*ends[0]):
            heapq.heappop(ends)
        if not ends:
            return math.inf
        return (ends[0][0] - self._drafted) / self._pace if drafts else ends[0][0] - self._steps

    def _stale(self, end: float, request_id: int) -> bool:
        """Whether a rollout has left its slot, or the others, since its end was noted."""
        row = self.running.get(request_id)
        return row is None or end != row.end

    def _room(self) -> int:
        """Number of decode steps until the cache is full."""
        return int((self._rates.kv_tokens - self._context) // max(1, self._yield()))

    def _admit(self, row: Row) -> None:
        row.drafts = row.group in self._known
        row.since = self._clock(row)
        self._drafting += row.drafts
        self.running[row.request_id] = row
        self._await(row)
        shared = not row.done and row.group in self._groups
        self._groups[row.group] = self._groups.get(row.group, 0) + 1
        self._context += row.prompt_tokens + row.done
        tokens = row.prompt_tokens + row.done
        found, free, taken = self._left.pop((row.group[0], row.parks), (0, 0, 0))
        if self._taken - taken > free:
            found = 0
        self._taken += tokens
        if not shared:
            self._prefill += (tokens - found) * self._rates.prefill_seconds
        if row.done and row.parks >= 0:
            self.prefilled += tokens - found
            self.spared += found
        if row.evicted:
            self.prefilled_again += row.prompt_tokens + row.done

    def _evict(self, row: Row) -> None:
        """Put a rollout back in front of the queue; its tokens are kept."""
        self._leave_slot(row)
        # One that has just ended is reported before it could be taken up again.
        row.done = min(row.length - 1, row.done + int(self._clock(row) - row.since))
        row.evicted = True
        self._queue.appendleft(row)
