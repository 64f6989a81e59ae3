"""A lossy line as TCP shows it to a stream: late, never short.

A relay of streams cannot lose a byte, so the packets in between are simulated, one by one. A
`Pipe` is one direction of a line: it delays, queues, loses and reorders packets. A `Flow` is one
direction of a connection over it: a sender's window and timers, a receiver that hands on what is
in order, and acknowledgements that travel (and are lost) on the way back. So a loss shows as a
pause of a round trip where more data follows, as a time-out where none does, as time-outs that
double where the repeated packet is lost too; and all bytes behind it wait.

Sources: RFC 6298 for the time-out (2: round trip + 4 deviations, with Linux's 0.2 s at least in
place of 1 s; 3: Karn's rule; 5.5: it doubles; 5.6: up to 60 s and more, here 60 s), RFC 5681 for
slow start, congestion avoidance and the window after a loss, RFC 8985 (RACK) for which packets are
lost: those sent a quarter of a round trip before one that arrived, and for the probe that comes
before the first time-out (7.2). Left out: F-RTO, delayed acknowledgements, and CUBIC's or BBR's
larger windows.
tests/NOTES.md has a comparison with a kernel's own TCP.
"""

import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from rlboost_jax.simulator.virtual_clock import VirtualClock

SEGMENT_BYTES = 1448
HEADER_BYTES = 52  # IPv4 and TCP with timestamps
FIRST_WINDOW = 10.0  # segments: RFC 6928
LEAST_VARIANCE = 0.2  # seconds
FIRST_TIMEOUT, LONGEST_TIMEOUT = 1.0, 60.0


class Handle(Protocol):
    def cancel(self) -> None: ...


class Clock(Protocol):
    """An event loop, or `VirtualLoop`."""

    def time(self) -> float: ...

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle: ...


@dataclass
class _Timer:
    call: Callable[[], object] | None

    def cancel(self) -> None:
        self.call = None

    def __call__(self) -> None:
        if self.call is not None:
            self.call()


class VirtualLoop(VirtualClock):
    """Virtual time with the methods of an event loop."""

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., object], *args: Any) -> Handle:
        timer = _Timer(partial(callback, *args))
        self.at(when, timer)
        return timer


@dataclass(frozen=True, kw_only=True)
class Way:
    """One direction of a line.

    Attributes:
        delay: seconds.
        jitter: seconds that may come on top, each as likely; order is kept.
        loss: share of packets that are lost.
        reordering: share of packets that others overtake: they take half as long again.
        bytes_per_second: on the wire, headers included.
        queue_seconds: that packets may wait for the wire; later ones are lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    reordering: float = 0.0
    bytes_per_second: float = math.inf
    queue_seconds: float = 1.0


class Pipe:
    """One direction of a line, shared by all connections over it."""

    def __init__(self, way: Way, chance: random.Random) -> None:
        self.way, self._chance = way, chance
        self._free_at = self._last_at = -math.inf
        self.cut = False  # nothing passes any more

    def arrival(self, num_bytes: int, now: float) -> float | None:
        """When a packet that is sent now arrives; None: never."""
        way, chance = self.way, self._chance
        begins = max(now, self._free_at)
        if self.cut or begins - now > way.queue_seconds:
            return None
        self._free_at = begins + num_bytes / way.bytes_per_second
        if chance.random() < way.loss:
            return None
        at = self._free_at + way.delay + chance.uniform(0.0, way.jitter)
        if chance.random() < way.reordering:
            return at + way.delay / 2
        self._last_at = max(self._last_at, at)
        return self._last_at


@dataclass(eq=False, slots=True)
class _Segment:
    number: int
    data: bytes
    sent_at: float = -math.inf
    tries: int = 0
    arrived: bool = False  # as far as the sender knows
    lost: bool = False


class Flow:
    """One direction of a TCP connection.

    Args:
        there, back: the pipes of its data and of its acknowledgements.
        deliver: is called with bytes in order, as the receiver's program gets them.
        room: is called when more can be taken, if `offer` found that none was left.
    """

    def __init__(
        self,
        clock: Clock,
        there: Pipe,
        back: Pipe,
        deliver: Callable[[bytes], object],
        *,
        buffer_bytes: int = 2**18,
        room: Callable[[], object] = lambda: None,
    ) -> None:
        self._clock, self._there, self._back = clock, there, back
        self._deliver, self._room, self._buffer_bytes = deliver, room, buffer_bytes
        self._unsent: deque[bytes] = deque()
        self._num_unsent = 0
        self._full = False
        self._numbers = itertools.count()
        self._out: dict[int, _Segment] = {}  # sent and not acknowledged in order, by number
        self._window, self._threshold = FIRST_WINDOW, math.inf
        self._reduced_at = -math.inf  # what was sent before has been answered for
        self._round_trip = self._deviation = 0.0
        self._backoff = 0
        self._probed = False  # since something new was acknowledged
        self._newest_sent = -math.inf  # of those that arrived
        self._timer: Handle | None = None
        self._reordering_timer: Handle | None = None
        # The receiver's
        self._next = 0
        self._early: dict[int, bytes] = {}

    def offer(self, data: bytes) -> bool:
        """Send these. False: enough for now, `room` says when there is room again."""
        for start in range(0, len(data), SEGMENT_BYTES):
            self._unsent.append(data[start : start + SEGMENT_BYTES])
        self._num_unsent += len(data)
        self._push()
        self._full = self._num_unsent > self._buffer_bytes
        return not self._full

    @property
    def idle(self) -> bool:
        """All that was offered has arrived and is known to."""
        return not self._unsent and not self._out

    def stop(self) -> None:
        for timer in (self._timer, self._reordering_timer):
            if timer is not None:
                timer.cancel()
        self._unsent.clear()
        self._out.clear()

    # The sender

    @property
    def _timeout(self) -> float:
        if not self._round_trip:
            return FIRST_TIMEOUT * 2**self._backoff
        least = self._round_trip + max(LEAST_VARIANCE, 4 * self._deviation)
        return min(LONGEST_TIMEOUT, least * 2**self._backoff)

    def _push(self) -> None:
        """Send what the window has room for, what was lost first."""
        flying = sum(not (s.arrived or s.lost) for s in self._out.values())
        for segment in self._out.values():
            if flying >= self._window:
                return
            if segment.lost:
                self._send(segment)
                flying += 1
        while self._unsent and flying < self._window:
            self._send(self._take())
            flying += 1
        if self._full and self._num_unsent <= self._buffer_bytes // 2:
            self._full = False
            self._room()

    def _take(self) -> _Segment:
        segment = _Segment(next(self._numbers), self._unsent.popleft())
        self._num_unsent -= len(segment.data)
        self._out[segment.number] = segment
        return segment

    def _send(self, segment: _Segment) -> None:
        now = self._clock.time()
        segment.sent_at, segment.lost = now, False
        segment.tries += 1
        at = self._there.arrival(len(segment.data) + HEADER_BYTES, now)
        if at is not None:
            self._clock.call_at(at, self._receive, segment, now, segment.tries)
        if self._timer is None or segment is next(iter(self._out.values())):
            self._arm()

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if not self._out:
            return
        wait, then = self._timeout, self._timed_out
        if self._round_trip and not (self._probed or any(s.lost for s in self._out.values())):
            patience = 2 * self._round_trip + (LEAST_VARIANCE if len(self._out) == 1 else 0.0)
            wait, then = min(wait, patience), self._probe
        self._timer = self._clock.call_at(self._clock.time() + wait, then)

    def _probe(self) -> None:
        """Something new or the newest again: its acknowledgement shows what is missing."""
        self._timer, self._probed = None, True
        if self._unsent:
            self._send(self._take())
        else:
            self._send(next(s for s in reversed(self._out.values()) if not s.arrived))
        self._arm()

    def _timed_out(self) -> None:
        self._timer = None
        self._threshold = max(2.0, len(self._out) / 2)
        self._window = 1.0
        self._backoff += 1
        self._reduced_at = self._clock.time()
        for segment in self._out.values():
            segment.lost = not segment.arrived
        self._push()
        self._arm()

    def _acknowledged(self, upto: int, number: int, sent_at: float, tries: int) -> None:
        """All before `upto` have arrived, and `number`, in the state in which it was sent then."""
        now = self._clock.time()
        if tries == 1:
            self._measured(now - sent_at)
        self._newest_sent = max(self._newest_sent, sent_at)
        if number in self._out:
            self._out[number].arrived, self._out[number].lost = True, False
        done = [n for n in self._out if n < upto]
        for n in done:
            del self._out[n]
        if done:
            self._backoff, self._probed = 0, False
            grow = self._window < self._threshold
            self._window += len(done) if grow else len(done) / self._window
            self._arm()
        self._find_losses()
        self._push()

    def _measured(self, seconds: float) -> None:
        if not self._round_trip:
            self._round_trip, self._deviation = seconds, seconds / 2
        self._deviation += (abs(seconds - self._round_trip) - self._deviation) / 4
        self._round_trip += (seconds - self._round_trip) / 8

    def _find_losses(self) -> None:
        now = self._clock.time()
        patience = self._round_trip * 1.25
        again = math.inf
        for segment in self._out.values():
            if segment.arrived or segment.lost or segment.sent_at >= self._newest_sent:
                continue
            if segment.sent_at + patience > now + 1e-9:
                again = min(again, segment.sent_at + patience)
                continue
            segment.lost = True
            if segment.sent_at > self._reduced_at:
                self._window = self._threshold = max(2.0, self._window / 2)
                self._reduced_at = now
        if self._reordering_timer is not None:
            self._reordering_timer.cancel()
            self._reordering_timer = None
        if again < math.inf:
            self._reordering_timer = self._clock.call_at(again, self._look_again)

    def _look_again(self) -> None:
        self._reordering_timer = None
        self._find_losses()
        self._push()

    # The receiver

    def _receive(self, segment: _Segment, sent_at: float, tries: int) -> None:
        now = self._clock.time()
        if segment.number >= self._next:
            self._early[segment.number] = segment.data
        while (data := self._early.pop(self._next, None)) is not None:
            self._next += 1
            self._deliver(data)
        at = self._back.arrival(HEADER_BYTES, now)
        if at is not None:
            self._clock.call_at(at, self._acknowledged, self._next, segment.number, sent_at, tries)
