"""The simulated TCP: what arrives, in which order, how late, against bounds and closed forms."""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lines.tcp import (
    HEADER_BYTES,
    LEAST_VARIANCE,
    SEGMENT_BYTES,
    Flow,
    Pipe,
    VirtualLoop,
    Way,
)


class Connection:
    def __init__(self, way: Way, back: Way | None = None, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.clock, self.arrivals = VirtualLoop(), []
        self.there, self.back = Pipe(way, chance), Pipe(back or way, chance)
        self.flow = Flow(self.clock, self.there, self.back, self._arrives)

    def _arrives(self, data: bytes) -> None:
        self.arrivals.append((self.clock.now, data))

    @property
    def received(self) -> bytes:
        return b"".join(data for _, data in self.arrivals)


@settings(max_examples=30, deadline=None)
@given(
    delay=st.floats(0.001, 0.3), jitter=st.floats(0.0, 0.2), loss=st.floats(0.0, 0.3),
    reordering=st.floats(0.0, 0.3), sizes=st.lists(st.integers(1, 9000), max_size=20),
    seed=st.integers(0, 999),
)  # fmt: skip
def test_all_bytes_arrive_once_in_order_and_never_early(
    delay: float, jitter: float, loss: float, reordering: float, sizes: list[int], seed: int
) -> None:
    way = Way(delay=delay, jitter=jitter, loss=loss, reordering=reordering)
    line = Connection(way, seed=seed)
    sent = b"".join(bytes([number % 256]) * size for number, size in enumerate(sizes))
    for number, size in enumerate(sizes):
        line.flow.offer(bytes([number % 256]) * size)
    line.clock.pass_until(3600.0)
    assert line.received == sent and line.flow.idle
    assert all(at >= delay for at, _ in line.arrivals)


def test_a_lost_packet_comes_after_its_time_out_and_those_double() -> None:
    line = Connection(Way(delay=0.15))
    for _ in range(100):  # until the deviation is 0
        line.flow.offer(b"x")
        line.clock.pass_until(line.clock.now + 1.0)
    sent_at = line.clock.now
    line.there.cut = True
    line.flow.offer(b"y")
    tries = [0.5, 0.5, 1.0, 2.0]  # a probe, then time-outs: 0.3 s + 0.2 s, doubled
    line.clock.pass_until(sent_at + sum(tries) - 0.01)
    line.there.cut = False
    line.clock.pass_until(sent_at + 60.0)
    assert pytest.approx(tries[0]) == 0.3 + LEAST_VARIANCE
    assert line.arrivals[-1][0] - sent_at == pytest.approx(sum(tries) + 0.15, abs=0.01)


def test_more_data_brings_a_lost_packet_back_a_round_trip_later() -> None:
    line = Connection(Way(delay=0.15))
    for _ in range(100):
        line.flow.offer(b"x")
        line.clock.pass_until(line.clock.now + 1.0)
    sent_at = line.clock.now
    line.there.cut = True
    line.flow.offer(b"y")
    line.there.cut = False
    line.clock.pass_until(sent_at + 0.01)
    line.flow.offer(b"z")
    line.clock.pass_until(sent_at + 0.2)
    assert line.received.endswith(b"x"), "what is behind it waits"
    line.clock.pass_until(sent_at + 10.0)
    (first, _), (second, _) = line.arrivals[-2:]
    # Known as lost a quarter of a round trip after the answer to the next one was due.
    assert first == second and first - sent_at == pytest.approx(0.3 * 1.25 + 0.15, abs=0.01)


def test_bulk_takes_as_long_as_its_bytes_on_the_wire() -> None:
    line = Connection(Way(delay=0.02, bytes_per_second=125_000.0), Way(delay=0.02))
    size = 500_000
    line.flow.offer(bytes(size))
    line.clock.pass_until(60.0)
    wire = size * (1 + HEADER_BYTES / SEGMENT_BYTES) / 125_000
    last = line.arrivals[-1][0]
    assert wire < last < 1.3 * wire


KERNEL = {0.99: 1.24, 0.999: 2.26, 0.9999: 4.74}  # quantile → seconds; see tests/NOTES.md


def test_pauses_are_as_long_as_a_kernels_own() -> None:
    """A message every 0.3 s over 300 ms, a tenth lost each way: gaps between arrivals."""
    gaps = []
    for seed in range(12):
        line = Connection(Way(delay=0.15, loss=0.1), seed=seed)
        for number in range(2000):
            line.clock.pass_until(0.3 * number)
            line.flow.offer(b"x")
        line.clock.pass_until(900.0)
        times = [at for at, _ in line.arrivals]
        gaps += [after - before for before, after in itertools.pairwise(times)]
    gaps.sort()
    for quantile, seconds in KERNEL.items():
        assert seconds / 2 < gaps[int(quantile * len(gaps))] < 2 * seconds
