"""The clock of another process, from its answers.

A question leaves at a of our clock, the answer bears the stamp m of the other's and is here
at b. The other clock read m at some moment in between, so it is ahead of ours by
m - (a + b) / 2, give or take (b - a) / 2, however fast either way was.

Source: the on-wire protocol of NTP, RFC 5905 section 8, with the server's two stamps in one.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from rlboost_jax.messages import Span

REMEMBERED: Final = 64  # answers: 20 s of lease renewals, in which clocks drift by 2 ms at most


class Clock:
    """The quickest of the newest answers counts. Answers come in the order of the questions."""

    def __init__(self) -> None:
        self._asked: deque[float] = deque()
        self._answers: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)  # error, ahead
        self._best = (0.0, 0.0)  # of these; read by other threads

    def asked(self, now: float) -> None:
        """A question leaves."""
        self._asked.append(now)

    def answered(self, stamp: float, now: float) -> None:
        """An answer is here; one that nobody asked for says nothing."""
        if self._asked:
            sent = self._asked.popleft()
            self._answers.append(((now - sent) / 2, stamp - (sent + now) / 2))
            self._best = min(self._answers)

    def restart(self) -> None:
        """Another stream, and maybe another process at its end: its answers alone will count.

        Until the first of them, what was known stands: a manager that was started again on its
        host has the clock of the one before, and spans may be moved at any moment.
        """
        self._asked.clear()
        self._answers.clear()

    @property
    def ahead(self) -> float:
        """Seconds to add to our clock for the other's; 0 before the first answer of all."""
        return self._best[1]

    @property
    def error(self) -> float:
        """Seconds by which `ahead` may be wrong; 0 before the first answer of all."""
        return self._best[0]

    def moved(self, spans: Iterable[Span]) -> Iterator[Span]:
        """Spans of our clock on the other's."""
        ahead = self.ahead
        for span in spans:
            yield msgspec.structs.replace(span, start=span.start + ahead)
