"""Bad lines under a simulated stream: frames arrive in order and all of them, late as TCP is late.

A frame waits for the wire where that is narrow, then for what is lost of it: a packet that is lost
k times in a row comes 2^k - 1 time-outs later, and all behind it with it. Here none is lost more
than `IN_A_ROW` times: with that, no honest server may be lost, however unlucky it is. Estimates of
`rlboost_jax.manager.policies.connection_quality` allow for more, by odds: see
`tests/manager/policies/test_connection_quality.py`.
"""

import random
from dataclasses import dataclass
from typing import Final

from benchmarks.lines.tcp import HEADER_BYTES, LEAST_VARIANCE, Way

IN_A_ROW: Final = 2
GOOD_SECONDS: Final = 0.01  # of delay each way: such a line's dead are known within 2 s
SNAPSHOT_BYTES: Final = 8_000


def ways(amount: float) -> tuple[Way, Way]:
    """Up and down, by a share in [0, 1): which kind of line, and how bad a one."""
    kind, much = divmod(8 * amount, 1)
    far, slow = Way(delay=0.15 * much), 8_000 + 120_000 * (1 - much)
    match int(kind):
        case 0:
            return Way(delay=GOOD_SECONDS * much), Way(delay=GOOD_SECONDS * much)
        case 1:
            return far, far
        case 2:
            return (Way(delay=0.1, jitter=0.1 * much),) * 2
        case 3:
            return (Way(delay=0.15 * much, loss=0.1),) * 2
        case 4:
            return Way(delay=0.15 * much, loss=0.1), far
        case 5:
            return far, Way(delay=0.15 * much, loss=0.1)
        case 6:
            return (Way(delay=0.03, bytes_per_second=slow),) * 2
    return Way(delay=0.05, jitter=0.05, loss=0.02, bytes_per_second=slow), Way(delay=0.02)


@dataclass
class Line:
    """Between one server and the manager.

    Attributes:
        good: nothing of it is bad.
    """

    up: Way
    down: Way
    chance: random.Random

    def __post_init__(self) -> None:
        self._free_at = {True: 0.0, False: 0.0}
        jitter = self.up.jitter + self.down.jitter
        self._round_trip = self.up.delay + self.down.delay + jitter
        self._timeout = self._round_trip + LEAST_VARIANCE

    @property
    def good(self) -> bool:
        most = max(self.up.delay, self.down.delay)
        calm = not (self.up.jitter or self.down.jitter or self.up.loss or self.down.loss)
        return calm and most <= GOOD_SECONDS and self.up.bytes_per_second == float("inf")

    def late(self, up: bool, num_bytes: int, now: float) -> float:
        """Seconds that a frame takes by itself; it comes after those before it, besides."""
        way, chance = self.up if up else self.down, self.chance
        seconds = way.delay + chance.uniform(0.0, way.jitter)
        sent = max(now, self._free_at[up]) + (num_bytes + HEADER_BYTES) / way.bytes_per_second
        self._free_at[up] = sent
        tries = 0
        while tries < IN_A_ROW and chance.random() < way.loss:
            tries += 1
        return sent - now + seconds + (2**tries - 1) * self._timeout

    def fetch_seconds(self) -> float:
        """Seconds to fetch weights."""
        return 2 * self._round_trip + SNAPSHOT_BYTES / self.down.bytes_per_second


def line_of(amount: float, seed: int, number: int) -> Line:
    """The line of the server that is the `number`-th of a schedule."""
    return Line(*ways(amount), random.Random(f"line {seed} {number}"))
