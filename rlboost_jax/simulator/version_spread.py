"""A version that many servers fetch at once: its numbers, how fast that can be, what came of it.

`weight_rounds` simulates it.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

MOST_FROM_TRAINER: Final = 4
PATIENT: Final = 10.0  # times as patient are servers that bring no parts


@dataclass(frozen=True, kw_only=True)
class VersionSpread:
    """A version that servers fetch, all of them from time 0 on. Rates are bytes per second.

    Attributes:
        version_bytes: of all pieces.
        piece_bytes: of a piece; the last may be shorter.
        trainer_rate: that the trainer sends.
        server_rate: that a server sends, and that it receives.
        zones: number of each server's zone. The trainer is in zone 0.
        between_zones_rate: of the line from a zone to another, each way.
        from_trainer: pieces that a server fetches from the trainer at a time.
        latency_seconds: between asking for a piece and its first byte.
        patience_seconds: without a byte, or with hardly any, until a source is not asked again;
            without a byte from any source until a server asks the trainer.
        round_seconds: of a round; 0: what a piece takes on a server's link.
        lost: by server: when it is gone. The manager hears of it in the next round.
        slow: by server: its rate of sending, such as 0 for one that stalls.
        liars: servers whose pieces are wrong, which is seen once they have come.
    """

    version_bytes: float
    piece_bytes: float
    trainer_rate: float
    server_rate: float
    zones: Sequence[int]
    between_zones_rate: float = math.inf
    from_trainer: int = MOST_FROM_TRAINER
    latency_seconds: float = 0.0
    patience_seconds: float = 2.0
    round_seconds: float = 0.0
    lost: Mapping[int, float] | None = None
    slow: Mapping[int, float] | None = None
    liars: Collection[int] = ()

    @property
    def floor_seconds(self) -> float:
        """A time below which no plan of any kind comes.

        The trainer sends each byte at least once, the line into a zone carries each byte at least
        once, every server receives each byte, and what all receive is sent by the trainer or by one
        of them.
        """
        count, size = len(self.zones), self.version_bytes
        most = self.trainer_rate + count * self.server_rate
        abroad = len(set(self.zones) - {0}) > 0
        return max(
            size / self.trainer_rate,
            size / self.server_rate,
            count * size / most,
            size / self.between_zones_rate if abroad else 0.0,
        )

    @property
    def pipeline_seconds(self) -> float:
        """The time of a plan in which nobody waits for a piece, but for the last one.

        The slowest link carries the whole version, while pieces double with each time that a link
        takes for one of them: `floor_seconds` and log2 of the number of servers pieces more. For
        links of one rate that is the best there is, to within a piece.

        Source: Mundinger, Weber and Weiss 2008, Optimal scheduling of peer-to-peer file
        dissemination (J. Scheduling 11), theorem 1.
        """
        hops = math.ceil(math.log2(len(self.zones) + 1))
        return self.floor_seconds + hops * self.piece_bytes / self.server_rate


@dataclass(frozen=True, kw_only=True)
class SpreadOutcome:
    """What became of a version on its way. Bytes include pieces that were cut short.

    Attributes:
        current_seconds: [N] when each server had all pieces; NaN: it was lost.
        received_bytes: [N] of all transfers to a server.
        trainer_bytes: sent by the trainer.
        crossing_bytes: sent from one zone to another.
        wasted_bytes: of transfers that gave no piece.
        rounds: their number.
    """

    current_seconds: np.ndarray
    received_bytes: np.ndarray
    trainer_bytes: float
    crossing_bytes: float
    wasted_bytes: float
    rounds: int

    @property
    def seconds(self) -> float:
        """When the last server had all pieces."""
        return float(np.nanmax(self.current_seconds))
