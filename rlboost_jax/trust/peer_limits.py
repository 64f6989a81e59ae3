"""Limits on how much a peer may send. No clock or socket inside.

The holder of a server's token may be a host that an attacker controls. What it sends
must not cost the manager more than a stream's worth of memory, disk and time. The rates are
far above what an honest server reaches, so nobody has to set them.
"""

import math
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from rlboost_jax.messages import TOKEN_BATCH_BYTES

# With routes a token has hundreds of bytes, and models with experts are not that fast.
ROUTED_TOKENS_PER_SECOND: Final = 100_000
# What ends up in events.jsonl: two lines per version, or a failed download every 2 s.
REMARKS_PER_SECOND: Final = 2.0
REMARK_BURST: Final = 60
MAX_INSTANCES: Final = 1_000  # of one fleet
MAX_TURNS: Final = 4_096  # of a response; each may begin a sequence, of half a kilobyte
MAX_OPEN_BATCHES: Final = 16  # at once: a lag of 14, and one that is being trained

_FRAME_OVERHEAD: Final = 8_192  # Hello at its longest, a reason, names of fields
_ROW_BYTES: Final = 4 + 2 + 4  # of a token batch: request id, count and lead
_TOKEN_BYTES: Final = 4 + 4  # token and log-probability


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """Limits on what a server may send, and on how often it may connect.

    Attributes:
        frames_per_second: an engine sends a frame per dispatch, 100 a second where a model is
            tiny, 10 where it is not.
        frame_burst: lets through what piled up while the manager stood still for a minute.
        bytes_per_second: at 14 bytes a token, over a million tokens a second.
        stream_burst: of streams opened from one address. A fleet on one host comes back to a
            restarted manager at once, each server up to five times until it is through.
        max_callers: addresses remembered.
    """

    frames_per_second: float = 1_000
    frame_burst: int = 20_000
    bytes_per_second: float = 16 * 2**20
    byte_burst: int = 64 * 2**20
    streams_per_second: float = 5.0
    stream_burst: int = 2 * MAX_INSTANCES
    max_callers: int = 4_096


ALLOWANCE: Final = Allowance()


def server_frame_bytes(
    *, slots: int, slot_tokens: int, max_pending: int, route_bytes: int = 0
) -> int:
    """Size of the longest frame a rollout server may legitimately send.

    A token batch with a whole slot of tokens in every row that still goes into one, or all it
    holds given back.

    Args:
        route_bytes: that come with each token besides.
    """
    rows = slots + max_pending
    row = slot_tokens * (_TOKEN_BYTES + route_bytes)
    return _FRAME_OVERHEAD + rows * _ROW_BYTES + min(slots * row, max(TOKEN_BATCH_BYTES, row))


def trainer_queue_bytes(route_bytes: int = 0) -> int:
    """Unsent frames of the trainer: a resumed step of 2**28 tokens is sent again in one go."""
    return 2**28 * (_TOKEN_BYTES + route_bytes)


class Bucket:
    """Token bucket: lets `rate` per second through, and `burst` at once."""

    __slots__ = ("_at", "_burst", "_level", "_rate")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._level = burst
        self._at = -math.inf

    def take(self, amount: float, now: float) -> bool:
        """Take `amount` if the bucket holds it, and return whether it did."""
        if now > self._at:
            gained = (now - self._at) * self._rate
            self._level = min(self._burst, self._level + gained)
            self._at = now
        if amount > self._level:
            return False
        self._level -= amount
        return True


class Meter:
    """Rate limit on the frames of one stream, control frames included."""

    def __init__(self, route_bytes: int = 0, allowance: Allowance = ALLOWANCE) -> None:
        """Set up a stream that may send a burst at once.

        Args:
            route_bytes: that come with each token.
        """
        routed = ROUTED_TOKENS_PER_SECOND * route_bytes
        self._allowance = allowance
        self._rate = allowance.bytes_per_second + routed
        self._frames = Bucket(allowance.frames_per_second, allowance.frame_burst)
        self._bytes = Bucket(self._rate, allowance.byte_burst + 2 * routed)

    def objection(self, size: int, now: float) -> str:
        """Reason to refuse a frame of `size` bytes; "" if it is within the limits."""
        if not self._frames.take(1, now):
            return f"over {self._allowance.frames_per_second:,} frames per second"
        if not self._bytes.take(size, now):
            return f"over {self._rate:,} bytes per second"
        return ""


class Callers:
    """Rate limit on new streams per address; the addresses silent longest are forgotten first."""

    def __init__(self, allowance: Allowance = ALLOWANCE) -> None:
        self._allowance = allowance
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def admit(self, address: str, now: float) -> bool:
        """Whether this address may open one more stream now."""
        allowed = self._allowance
        bucket = self._buckets.pop(address, None) or Bucket(
            allowed.streams_per_second, allowed.stream_burst
        )
        self._buckets[address] = bucket
        if len(self._buckets) > allowed.max_callers:
            self._buckets.popitem(last=False)
        return bucket.take(1, now)
