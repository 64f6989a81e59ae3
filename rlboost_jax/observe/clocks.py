"""Estimate of another process's clock from its answers.

A question leaves at a of our clock, the answer bears the stamp m of the other's and is here
at b. The other clock read m at some moment in between, so it is ahead of ours by
m - (a + b) / 2, give or take (b - a) / 2, however fast either way was.

Source: the on-wire protocol of NTP, RFC 5905 section 8, with the server's two stamps in one.
"""

from collections import deque
from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from rlboost_jax.messages import Span

REMEMBERED: Final = 64  # answers: 20 s of lease renewals, in which clocks drift by 2 ms at most


class Reading(NamedTuple):
    """Clock offset from one answer, in seconds; of two, the smaller is the better."""

    error: float  # by which `ahead` may be wrong
    ahead: float  # to be added to our clock for the other's

    def contradicts(self, other: "Reading") -> bool:
        """Whether no clock agrees with both."""
        return abs(self.ahead - other.ahead) > self.error + other.error


UNKNOWN: Final = Reading(0.0, 0.0)


class RemoteClock:
    """Estimate by the quickest of the newest answers. Answers come in the order of the requests."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque()
        self._answers: deque[Reading] = deque(maxlen=REMEMBERED)
        self._best = UNKNOWN  # of these; read by other threads
        self._used = UNKNOWN  # for the spans that were moved

    def asked(self, now: float) -> None:
        """Record that a request is sent."""
        self._asked.append(now)

    def answered(self, stamp: float, now: float) -> None:
        """Record an answer; one without a request is ignored."""
        if self._asked:
            sent = self._asked.popleft()
            self._answers.append(Reading((now - sent) / 2, stamp - (sent + now) / 2))
            self._best = min(self._answers)

    def restart(self) -> None:
        """Start anew for another stream, whose end may be another process.

        Until the first of them, what was known stands: a manager that was started again on its
        host has the clock of the one before, and spans may be moved at any moment.
        """
        self._asked.clear()
        self._answers.clear()

    def moved(self, spans: Iterable[Span]) -> tuple[tuple[Span, ...], float]:
        """Convert spans from our clock to the other's; also returns the possible error in seconds.

        All are moved by the same until that cannot be right: by a better one, later spans would
        begin before earlier ones end. Before the first answer of all, they stay where they are.
        """
        best = self._best
        if self._used == UNKNOWN or self._used.contradicts(best):
            self._used = best
        ahead = self._used.ahead
        moved = (msgspec.structs.replace(span, start=span.start + ahead) for span in spans)
        return tuple(moved), abs(ahead - best.ahead) + best.error
