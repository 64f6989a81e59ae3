"""An engine in virtual time: slots, a cache of bounded size, a queue, decode steps in stretches.

All rollouts in slots advance together, a token per step, so that one number says how far they
are. A stretch is a run of steps in which nothing changes: it ends with the first response that
ends (rounded up to whole dispatches), when tokens are to be reported, or when the cache is full.
Whatever comes in between cuts it short at the step that is done by then.
"""

import heapq
import math
from collections import deque
from collections.abc import Iterable
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
    since: int = 0  # the engine's step count at that time
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
        self._ends: list[tuple[int, int]] = []  # (step count, request) of requests in slots
        self._groups: dict[tuple[int, int], int] = {}  # rollouts here, of each prompt
        self._steps = 0
        self._begun = 0  # step count when the stretch began, and a dispatch with it
        self._reported_at = 0  # step count when everything was reported last
        self._context = 0  # tokens held in slots
        self._at = 0.0  # the time that `_steps` belongs to
        self._prefill = 0.0  # seconds of it that come before the next decode step
        self._stretch, self._seconds = 0, 0.0  # steps planned, and how long they take
        # Of those that may come back: tokens, others that pages were free for as they left, and
        # tokens that pages had been taken for by then. `rlboost_jax.engine.prefixes`, in tokens.
        self._left: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._taken = 0
        self._seen_at = 0.0
        self.slot_seconds = 0.0  # of slots with a rollout in them
        self.prefilled = self.spared = 0  # tokens of rollouts that came with any sampled
        self.prefilled_again = 0  # tokens, because of evictions, since it was last asked
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
        self._steps += steps
        self._taken += steps * len(self.running)
        self._stretch -= steps
        self._seconds -= seconds
        self._context += steps * len(self.running)

    def lose_dispatch(self, now: float) -> None:
        """Discard the tokens of the unfinished dispatch: the machine is lost with them."""
        self.advance(now)
        unsent = (self._steps - self._begun) % self._dispatch
        self._steps -= unsent
        self._context -= unsent * len(self.running)

    def report(self, now: float, *, everything: bool = False) -> list[NewTokens]:
        """Return the new tokens of rollouts that ended, and remove these; then continue.

        Of the others too, if everything is asked for or that was long ago: to tell every
        token as it comes would cost more than all else, and changes nothing.
        """
        reported = []
        while self._ends and (self._ends[0][0] <= self._steps or self._stale(*self._ends[0])):
            end, request_id = heapq.heappop(self._ends)
            if request_id in self.running and not self._stale(end, request_id):
                row = self.running.pop(request_id)
                reported.append(NewTokens(row, row.length - row.reported, ended=True))
                self._leave_slot(row)
                self._leave_pages(row)
        if everything or self._steps >= self._reported_at + self._message:
            self._reported_at = self._steps
            for row in self.running.values():
                row.done, row.since = row.done + self._steps - row.since, self._steps
            for row in (*self.running.values(), *self._queue):
                if row.done > row.reported:
                    reported.append(NewTokens(row, row.done - row.reported, ended=False))
                    row.reported = row.done
        self._plan(now)
        return reported

    def forget(self) -> None:
        """Drop the reusable pages, which other weights make worthless."""
        self._left.clear()

    def _leave_pages(self, row: Row) -> None:
        """Free the pages of a parked turn, whose contents may be reused."""
        if row.parks >= 0:
            tokens = row.prompt_tokens + row.length
            free = int(self._rates.kv_tokens) - self._context - tokens
            self._left[row.group[0], row.parks] = tokens, free, self._taken

    def _leave_slot(self, row: Row) -> None:
        self._context -= row.prompt_tokens + row.done + self._steps - row.since
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
        while self._stale(*self._ends[0]):
            heapq.heappop(self._ends)
        steps = self._ends[0][0] - self._steps
        steps = math.ceil(steps / self._dispatch) * self._dispatch
        quiet = self._reported_at + self._message - self._steps
        self._stretch = max(1, min(steps, quiet, max(self._room(), self._dispatch)))
        context = self._context + self._stretch * batch / 2
        self._seconds = self._stretch * self._rates.step_seconds(batch, context)

    def _stale(self, end: int, request_id: int) -> bool:
        """Whether a rollout has left its slot since its end was noted."""
        row = self.running.get(request_id)
        return row is None or end != row.since + row.length - row.done

    def _room(self) -> int:
        """Number of decode steps until the cache is full."""
        return (self._rates.kv_tokens - self._context) // max(1, len(self.running))

    def _admit(self, row: Row) -> None:
        row.since = self._steps
        self.running[row.request_id] = row
        heapq.heappush(self._ends, (self._steps + row.length - row.done, row.request_id))
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
        row.done = min(row.length - 1, row.done + self._steps - row.since)
        row.evicted = True
        self._queue.appendleft(row)
