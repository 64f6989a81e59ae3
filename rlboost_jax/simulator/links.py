"""Weights on their way: one sender's link, shared evenly, and a link of each receiver's own.

All pulls under way go at one rate, the receiver's or an equal share of the sender's. So one
common count of bytes grows for all of them, and a pull ends when that count has grown by its size.
A heap of the counts at which pulls end says who is next.

Where receivers also serve each other, each that pulls adds what it can send, and what leaves the
sender is one copy for all that pull. That is the floor of `version_spread`; thousands of servers
come to within 1.15 of it (`weight_rounds`).
"""

import heapq
from collections.abc import Callable

from rlboost_jax.simulator.virtual_clock import VirtualClock


class Link:
    """One sender's link and those of its receivers.

    Args:
        sender: bytes per second.
        receiver: bytes per second, of each.
        peer: bytes per second that a receiver sends to others; 0: none does.
    """

    def __init__(
        self, clock: VirtualClock, *, sender: float, receiver: float, peer: float = 0.0
    ) -> None:
        self._clock, self._sender, self._receiver, self._peer = clock, sender, receiver, peer
        self._got = 0.0  # bytes that a pull under way all the time would have
        self._at = 0.0
        self._ends: list[tuple[float, int]] = []
        self._pulls: dict[int, tuple[float, Callable[[], None]]] = {}  # → dollars a GB, what then
        self._count = 0
        self._turn = 0  # of the wake-up that counts
        self.sent_bytes = self.sent_dollars = 0.0  # of all pulls, those abandoned included
        self._dollars = 0.0  # for 1e9 bytes to each running pull

    def pull(self, size: float, done: Callable[[], None], *, dollars_per_gb: float = 0.0) -> int:
        """Begin a transfer; returns its number for `abandon`."""
        self._advance()
        self._count += 1
        self._pulls[self._count] = dollars_per_gb, done
        self._dollars += dollars_per_gb
        heapq.heappush(self._ends, (self._got + size, self._count))
        self._plan()
        return self._count

    def abandon(self, pull: int) -> None:
        """End a transfer; the bytes sent so far are wasted."""
        if pull in self._pulls:
            self._advance()
            self._dollars -= self._pulls.pop(pull)[0]
            self._plan()

    def settle(self) -> None:
        """Bring `sent_bytes` up to date."""
        self._advance()

    @property
    def _rate(self) -> float:
        count = max(1, len(self._pulls))
        return min(self._receiver, (self._sender + self._peer * (count - 1)) / count)

    def _advance(self) -> None:
        got = self._rate * (self._clock.now - self._at)
        self._got += got
        self.sent_bytes += got * len(self._pulls)
        copies = max(1, len(self._pulls)) if self._peer else 1
        self.sent_dollars += got / 1e9 * self._dollars / copies
        self._at = self._clock.now

    def _plan(self) -> None:
        while self._ends and self._ends[0][1] not in self._pulls:
            heapq.heappop(self._ends)
        self._turn += 1
        if self._ends:
            turn = self._turn
            seconds = max(0.0, self._ends[0][0] - self._got) / self._rate
            self._clock.after(seconds, lambda: self._end(turn))

    def _end(self, turn: int) -> None:
        if turn != self._turn:
            return
        self._advance()
        _, pull = heapq.heappop(self._ends)
        dollars, done = self._pulls.pop(pull)
        self._dollars -= dollars
        self._plan()
        done()
