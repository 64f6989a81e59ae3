"""Engines of one kind in a forecast: rollouts in slots and in their queue, from event to event."""

import heapq
import math
from collections import deque
from dataclasses import dataclass

from rlboost_jax.manager.policies.speeds import Rates

ADMITTED = 0.95  # share of a cache up to which engines take up more
STEP_ROUNDING = 1e-6  # decode steps


@dataclass(frozen=True, kw_only=True)
class Engines:
    """Engines of one kind and pace."""

    count: int
    slots: int  # of each
    rates: Rates
    cache_tokens: float = math.inf  # that each has room for
    gathered: bool = False  # as few of them work as have slots for all rows

    def full_speed(self, row_tokens: float) -> float:
        """Tokens per second of all of them, each with as many rollouts as it has room for.

        Args:
            row_tokens: tokens that a rollout holds, on average.
        """
        rows = max(1.0, min(self.slots, self.cache_tokens // row_tokens))
        return self.count * rows / self.rates.step_seconds(rows, rows * row_tokens)


class ForecastRows:
    """State of the rollouts of a forecast; all lists have one entry for each."""

    __slots__ = ("context", "moves", "remaining")

    def __init__(self, context: list[float], remaining: list[float], moves: list[bool]) -> None:
        self.context, self.remaining = context, remaining
        self.moves = moves  # its context must be prefilled

    def copy(self) -> "ForecastRows":
        return ForecastRows(self.context.copy(), self.remaining.copy(), self.moves.copy())


class Station:
    """Engines of one kind in the forecast."""

    __slots__ = ("active", "ahead", "at", "cache", "contexts", "count", "debt", "each", "first",
                 "gathered", "grain", "more", "queue", "rates", "rows", "slots",
                 "steps")  # fmt: skip

    def __init__(self, engines: Engines, rows: ForecastRows, grain: float) -> None:
        self.grain = grain  # decode steps: rollouts end at multiples of it, many together
        self.count, self.rates, self.rows = engines.count, engines.rates, rows
        self.each, self.gathered = engines.slots, engines.gathered
        self.slots = engines.count * engines.slots
        self.cache = engines.count * engines.cache_tokens
        self.active: list[tuple[float, int]] = []  # (steps at its end, row)
        self.queue: deque[int] = deque()  # rows in no slot yet, or no longer
        self.steps = 0.0  # decode steps so far
        self.contexts = 0.0  # tokens in slots
        self.debt = 0.0  # seconds of prefill that come first
        # Found by `next_event`:
        self.at = math.inf  # seconds to it
        self.ahead = 0.0  # decode steps to it
        self.first = self.more = 0.0  # a decode step's seconds now, what each later one takes more

    def copy(self, rows: ForecastRows) -> "Station":
        """Copy to be continued independently, on `rows`."""
        other = Station.__new__(Station)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.rows, other.active, other.queue = rows, self.active.copy(), self.queue.copy()
        return other

    @property
    def held(self) -> int:
        return len(self.active) + len(self.queue)

    def fill(self) -> None:
        """Move queued rollouts into slots, as far as the cache has room for them."""
        active, queue, grain, rows = self.active, self.queue, self.grain, self.rows
        while queue and len(active) < self.slots:
            number = queue[0]
            context = rows.context[number]
            if active and self.contexts + context >= ADMITTED * self.cache:
                return
            steps = self.steps
            end = grain * max(1.0, round((steps + rows.remaining[number]) / grain))
            rows.remaining[number] = remaining = max(grain / 2, end - steps)
            heapq.heappush(active, (steps + remaining, queue.popleft()))
            self.contexts += context
            if rows.moves[number]:
                self.debt += self.rates.prefill * context / min(self.count, len(active))
                rows.moves[number] = False

    def next_event(self) -> float:
        """Seconds until a rollout ends or the cache is full; inf: none is here."""
        rows, count, rates = len(self.active), self.count, self.rates
        if not rows:
            self.at = math.inf
            return math.inf
        used = self._used(rows)
        self.first = first = rates.step_seconds(rows / used, self.contexts / used)
        self.more = more = rates.context * rows / used
        steps = self.active[0][0] - self.steps
        if rows > count:
            steps = min(steps, max(0.0, self.cache - self.contexts) / rows)
        self.ahead = steps
        self.at = self.debt + steps * first + more * steps * steps / 2
        return self.at

    def _used(self, rows: int) -> int:
        """Number of engines that work on this many rows."""
        if self.gathered:
            return min(self.count, -(-rows // self.each))
        return self.count if self.count < rows else rows

    def advance(self, seconds: float) -> None:
        """Advance by fewer seconds than remain to the next event."""
        if not self.active:
            return
        if self.debt:
            paid = min(self.debt, seconds)
            self.debt, seconds = self.debt - paid, seconds - paid
        if seconds <= 0:
            return
        first, more = self.first, self.more
        if more * seconds > 1e-9 * first * first:
            steps = (math.sqrt(first * first + 2 * more * seconds) - first) / more
        else:
            steps = seconds / first
        self._step(min(steps, self.ahead))

    def _step(self, steps: float) -> None:
        self.steps += steps
        self.contexts += steps * len(self.active)

    def arrive(self) -> list[int]:
        """Advance exactly to the next event, by its steps; return the rows that have ended.

        If none has, the cache was full, and one row leaves its slot.
        """
        self.debt = 0.0
        self._step(self.ahead)
        active, rows, ended = self.active, self.rows, []
        used = self._used(len(active))
        while active and active[0][0] - self.steps <= STEP_ROUNDING:
            _, number = heapq.heappop(active)
            left = self.contexts - rows.context[number] - rows.remaining[number]
            self.contexts = max(0.0, left)
            ended.append(number)
        if self.gathered and active and (kept := self._used(len(active))) < used:
            moved = self.contexts * (used - kept) / used
            self.debt += self.rates.prefill * moved / kept
        if not ended:
            last = max(active)
            active.remove(last)
            heapq.heapify(active)
            self.out(*last)
            self.queue.appendleft(last[1])
        return ended

    def out(self, end: float, number: int) -> None:
        """Take a row out of its slot with its tokens; it must be prefilled again."""
        rows = self.rows
        done = rows.remaining[number] - (end - self.steps)
        rows.context[number] += done
        rows.remaining[number] -= done
        rows.moves[number] = True
        self.contexts = max(0.0, self.contexts - rows.context[number])

    def leave(self) -> list[int]:
        """Remove and return all rollouts held here."""
        for end, number in self.active:
            self.out(end, number)
        left = [*(number for _, number in self.active), *self.queue]
        self.active, self.queue, self.contexts = [], deque(), 0.0
        return left
