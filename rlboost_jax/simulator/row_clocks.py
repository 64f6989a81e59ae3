"""How far the rollouts in the slots of a simulated engine are: one clock for all that are alike.

A clock is a number of tokens that each of its rollouts has sampled since the engine began. Without
drafts it counts decode steps. With drafts each has a chance of acceptance of its own: where a
sibling's text goes on (`AHEAD`), where one of an earlier epoch does (`EARLIER`), where all texts of
the prompt are over (`BEYOND`), and where there is none (`PLAIN`), which drafts of other prompts'
responses or not at all.
"""

import heapq
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

PLAIN, AHEAD, BEYOND, EARLIER = range(4)


@dataclass(slots=True)
class Row:
    """A rollout in an engine."""

    request_id: int
    group: tuple[int, int]  # (step, prompt): its members share the prompt's prefill
    prompt_tokens: int  # and what was given since
    length: int  # of the response when its turn is over
    done: int  # response tokens when they were counted last
    reported: int  # response tokens that have been reported
    end: float = 0  # its clock at `until`
    clock: int = PLAIN
    until: int = 0  # response tokens up to which it keeps this clock
    evicted: bool = False
    parks: int = -1  # its sample, if it may come back for another turn; -1: it will not
    prompt: bytes = b""  # its tokens, by which it is known in later epochs


class RowClocks:
    """The clocks of one engine.

    Attributes:
        at: of each clock.
        pace: tokens of each clock in a decode step.
        count: rollouts in slots, by clock.
    """

    def __init__(self) -> None:
        self.at = [0.0, 0.0, 0.0, 0.0]
        self.pace = [1.0, 1.0, 1.0, 1.0]
        self.count = [0, 0, 0, 0]
        self._ends: tuple[list[tuple[float, int]], ...] = ([], [], [], [])  # (clock, request)

    @property
    def drafting(self) -> int:
        """Rollouts with a text of their own prompt to draft from."""
        return sum(self.count) - self.count[PLAIN]

    def spared(self) -> float:
        """Tokens of a decode step over one for each rollout."""
        return sum([n * (pace - 1) for n, pace in zip(self.count, self.pace, strict=True) if n])

    def take(self, steps: int) -> None:
        for clock, count in enumerate(self.count):
            if count or clock == PLAIN:
                self.at[clock] += steps * self.pace[clock]

    def position(self, row: Row) -> float:
        """Response tokens of a rollout in a slot."""
        return row.until - (row.end - self.at[row.clock])

    def settle(self, row: Row) -> None:
        """Count the whole tokens of a rollout in a slot: less than `until` of one that is not due.

        They follow from `end`, as being due does: a sum of their own would be rounded differently,
        and the last token could be counted, and reported, before the rollout is due.
        """
        tokens = row.until - math.ceil(row.end - self.at[row.clock])
        row.done = max(row.done, tokens)  # what was taken back may be rounded to a bit more

    def join(self, row: Row, clock: int, until: int, *, part: float = 0) -> None:
        """Put a rollout on a clock, up to so many of its tokens.

        Args:
            part: of its next token, that it has already. Rounded it may be all of it; there is
                something left all the same.
        """
        at = self.at[clock]
        row.clock, row.until = clock, until
        row.end = max(at + (until - row.done - part), math.nextafter(at, math.inf))
        self.count[clock] += 1
        heapq.heappush(self._ends[clock], (row.end, row.request_id))

    def change(self, row: Row, clock: int, until: int) -> None:
        """Put a rollout in a slot on another clock."""
        part = self.position(row) - row.done
        self.leave(row)
        self.join(row, clock, until, part=part)

    def leave(self, row: Row) -> None:
        self.count[row.clock] -= 1

    def due(self, running: Mapping[int, Row]) -> Iterator[Row]:
        """Return rollouts that are at `until` by now, each once; they must leave or join again."""
        for clock, ends in enumerate(self._ends):
            while ends and (ends[0][0] <= self.at[clock] or self._stale(clock, running)):
                stale = self._stale(clock, running)
                _, request_id = heapq.heappop(ends)
                if not stale:
                    yield running[request_id]

    def steps_to_next(self, running: Mapping[int, Row]) -> float:
        """Decode steps until the first rollout is due."""
        least = math.inf
        for clock, ends in enumerate(self._ends):
            while ends and self._stale(clock, running):
                heapq.heappop(ends)
            if ends:
                steps = ends[0][0] - self.at[clock]
                least = min(least, steps / self.pace[clock])
        return least

    def _stale(self, clock: int, running: Mapping[int, Row]) -> bool:
        """Whether the first entry's rollout has left its slot, or that clock, since."""
        end, request_id = self._ends[clock][0]
        row = running.get(request_id)
        return row is None or row.clock != clock or row.end != end
