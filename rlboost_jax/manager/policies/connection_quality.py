"""Permitted silence of a server, given the delays and losses of its connection so far.

What a lossy line shows to a stream is not its losses but TCP's pauses: a packet is sent again after
a time-out, which doubles with each loss in a row, and all that follows it waits. So a packet that
is lost k times in a row, one in (1/p)^k, holds a stream up for (2^k - 1) time-outs: the tail of
such pauses is a power law, and no number of deviations bounds it. A lease is to outlive the pause
that one renewal in ten million meets.

Source: RFC 6298, sections 2 and 5, for the time-out, with Linux's 0.2 s in place of its 1 s (2.4).
The accrual detector of Hayashibara et al. 2004 asks the same of arrivals with a normal tail.
"""

import math
from typing import Final

from rlboost_jax.sequences.shared_limits import FIRST_RENEWALS

LEAST_VARIANCE: Final = 0.2  # seconds that a time-out exceeds the round trip by, at least (Linux)
FIRST_TIMEOUT: Final = 1.0  # before the first round trip: RFC 6298 (2.1)
ODDS: Final = 1e-7  # of a renewal that meets a longer pause than is waited for
MEMORY: Final = 256  # round trips that count: of the last 77 s
LONGER: Final = 16  # late round trips in a row after which the way counts as that long
# Before anything is known of a line it is taken for one that loses a tenth; that counts as much
# as one round trip.
FIRST_LOSSES: Final = 0.1


class ConnectionQuality:
    """Delays and losses of one server's connection, and the lease that follows.

    Attributes:
        round_trip: of a renewal and its answer, in seconds; smoothed, as all that follows.
        deviation: of that, in seconds.
        timeout: after which a sender gives a packet up for lost, in seconds.
        pause: that a server may be silent for beyond what it always is, in seconds.
    """

    __slots__ = ("_behind", "_late", "_trips", "deviation", "pause", "round_trip", "timeout")

    def __init__(self) -> None:
        self.round_trip = self.deviation = 0.0
        self.timeout = FIRST_TIMEOUT
        self._trips = self._late = 0.0  # round trips, and of these the late ones, both forgotten
        self._behind = 0  # late ones in a row, up to the last
        self.pause = self._pause()

    def took(self, seconds: float) -> None:
        """Record a renewal that was answered after `seconds`.

        Beyond the time-out something was lost, which says nothing of how long the way is (Karn's
        rule, RFC 6298, 3), unless that goes on: then the way has become longer. What is late behind
        another says nothing of losses.
        """
        late = self._trips > 0 and seconds > self.timeout
        if not self._behind:
            forget = 1 - 1 / MEMORY
            self._trips = forget * self._trips + 1
            self._late = forget * self._late + late
        self._behind = self._behind + 1 if late else 0
        if self._trips == 1 or self._behind == LONGER:
            self.round_trip, self.deviation, self._behind = seconds, seconds / 2, 0
        elif not late:
            error = seconds - self.round_trip
            self.deviation += (abs(error) - self.deviation) / 4
            self.round_trip += error / 8
        self.timeout = self.round_trip + max(LEAST_VARIANCE, 4 * self.deviation)
        self.pause = self._pause()

    @property
    def known(self) -> bool:
        """Whether enough round trips were measured for the server to get a lease of its own."""
        return self._trips >= FIRST_RENEWALS - 1

    @property
    def losses(self) -> float:
        """Estimated share of packets lost: each round trip is two chances to lose one."""
        return (FIRST_LOSSES + self._late) / (1 + self._trips) / 2

    def lease(self, least: float, longest: float, renew: float) -> float:
        """Seconds for which a server may be silent.

        What an answer says is echoed by the next renewal but one at worst, a round trip later.

        Args:
            renew: seconds between renewals.
        """
        return max(least, min(longest, 2 * renew + self.round_trip + self.pause))

    def _pause(self) -> float:
        in_a_row = math.log(ODDS) / math.log(self.losses)
        return self.timeout * (2**in_a_row - 1)
