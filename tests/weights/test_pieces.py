"""The plan of a download: every byte once, helped where it is slow, and bounded whatever breaks."""

import itertools
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.weights.pieces import (
    FAST_BYTES_PER_SECOND,
    FIRST_CONNECTIONS,
    GROWTH,
    HELP_SECONDS,
    LEAST_BYTES,
    MOST_BYTES,
    MOST_CONNECTIONS,
    SMALL_BYTES,
    STALLED_SECONDS,
    Piece,
    PiecePlan,
    grown,
)

KIB = 2**10
TRIES = 6  # in a row that a failing piece is given here


@dataclass
class Line:
    """Carriers in virtual time: at each turn one of them gets bytes, breaks, or is free."""

    plan: PiecePlan
    size: int
    now: float = 0.0
    came: list[int] = field(default_factory=list)  # times, of each byte
    carried: dict[int, tuple[Piece, int, int]] = field(default_factory=dict)  # at, new bytes
    requests: int = 0

    def __post_init__(self) -> None:
        self.came = [0] * self.size

    def turn(self, carrier: int, num_bytes: int, breaks: bool) -> None:
        if carrier not in self.carried:
            piece = self.plan.next_piece(self.now, 0.0, 8)
            if piece is not None:
                assert piece.missing > 0 and piece.carriers <= 2
                self.carried[carrier] = piece, piece.at, 0
                self.requests += 1
            return
        piece, at, brought = self.carried[carrier]
        first, last = self.plan.arrived(piece, at + num_bytes, self.now)
        for byte in range(first, last):
            self.came[byte] += 1
        if breaks or not piece.missing:
            del self.carried[carrier]
            self.plan.ended(piece)
            if piece.missing:
                self.plan.failed(piece, brought + last - first, self.now)
        else:
            self.carried[carrier] = piece, at + num_bytes, brought + last - first


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 40 * LEAST_BYTES),
    turns=st.lists(
        st.tuples(
            st.integers(0, 7),
            st.integers(0, 3 * LEAST_BYTES),
            st.booleans(),
            st.sampled_from((0.0, 0.1, HELP_SECONDS, STALLED_SECONDS)),
        ),
        max_size=200,
    ),
)
def test_each_byte_comes_once_whatever_breaks_or_stalls(
    size: int, turns: list[tuple[int, int, bool, float]]
) -> None:
    gaps = [(0, 0, size // 2), (0, size // 2, size)]
    line = Line(PiecePlan(gaps, 0.1), size)
    for carrier, num_bytes, breaks, seconds in turns:
        line.now += seconds
        line.turn(carrier, num_bytes, breaks)
        assert line.plan.complete == (set(line.came) == {1})
    asked = line.requests
    for carrier in itertools.cycle(range(8)):  # from now on it is a good line
        if line.plan.complete:
            break
        line.now += 0.1
        line.turn(carrier, 4 * LEAST_BYTES, breaks=False)
    assert set(line.came) == {1}
    assert line.requests - asked <= 4 * size / LEAST_BYTES + 16, "requests without end"


def test_all_is_asked_for_at_once() -> None:
    """Nothing that takes seconds on a bad line waits for the answer to something else."""
    size = MOST_CONNECTIONS * 40 * KIB
    plan = PiecePlan([(0, 0, size)], 0.1)
    pieces = [plan.next_piece(0.0, 0.0, n) for n in range(FIRST_CONNECTIONS, MOST_CONNECTIONS + 4)]
    assert None not in pieces[:MOST_CONNECTIONS]
    assert sum(piece.missing for piece in pieces if piece) == size


def test_small_gaps_of_one_string_are_one_request() -> None:
    plan = PiecePlan([(0, 0, LEAST_BYTES), (1, 5, 9)], 0.1)
    first, second = plan.next_piece(0.0, 0.0, 4), plan.next_piece(0.0, 0.0, 4)
    assert first is not None and (first.source, first.at, first.end) == (0, 0, LEAST_BYTES)
    assert second is not None and (second.source, second.at, second.end) == (1, 5, 9)


def test_a_quick_connection_gets_long_pieces_and_a_slow_one_short_ones() -> None:
    plan = PiecePlan([(0, 0, 2**34)], 0.1)
    sizes = [
        piece.missing
        for rate in (1e3, 1e6, 1e9)
        if (piece := plan.next_piece(0.0, rate, 4)) is not None
    ]
    assert sizes == [LEAST_BYTES, 2_000_000, MOST_BYTES]


def test_a_stalled_piece_is_raced_from_its_last_byte_by_one_other() -> None:
    plan = PiecePlan([(0, 0, LEAST_BYTES)], 0.1)
    piece = plan.next_piece(0.0, 0.0, 4)
    assert piece is not None
    plan.arrived(piece, 1_000, 1.0)
    assert plan.next_piece(0.9 + STALLED_SECONDS, 0.0, 4) is None
    assert plan.next_piece(1.0 + STALLED_SECONDS, 0.0, 4) is piece and piece.at == 1_000
    assert plan.next_piece(9.0 + STALLED_SECONDS, 0.0, 4) is None, "two are enough"
    assert plan.arrived(piece, 3_000, 10.0) == (1_000, 3_000)
    assert plan.arrived(piece, 2_000, 10.0) == (3_000, 3_000), "these were here"


def test_the_second_half_of_a_slow_piece_is_anothers() -> None:
    plan = PiecePlan([(0, 0, 3 * LEAST_BYTES - 1)], 0.1)
    slow = plan.next_piece(0.0, 1e6, 1)
    assert slow is not None and slow.missing == 3 * LEAST_BYTES - 1
    assert plan.next_piece(HELP_SECONDS / 2, 0.0, 4) is None, "it may be quick"
    half = plan.next_piece(HELP_SECONDS, 0.0, 4)
    assert half is not None and half is not slow
    assert (slow.end, half.end) == (half.at, 3 * LEAST_BYTES - 1)


def test_what_fails_is_tried_again_later_and_later() -> None:
    plan = PiecePlan([(0, 0, LEAST_BYTES)], 0.1)
    now, waits = 0.0, []
    for failures in range(1, TRIES + 1):
        piece = plan.next_piece(now, 0.0, 4)
        assert piece is not None
        plan.ended(piece)
        assert plan.failed(piece, LEAST_BYTES - 1, now) == failures
        assert plan.next_piece(now, 0.0, 4) is None
        waits.append(piece.not_before - now)
        now = piece.not_before
    assert [round(wait, 6) for wait in waits] == [0.1 * 2**n for n in range(TRIES)]
    assert plan.failed(piece, LEAST_BYTES, now) == 0, "it came on"


def test_connections_become_more_where_that_helps() -> None:
    small = SMALL_BYTES // LEAST_BYTES
    assert grown(4, small, 0.0, 0.0) == 8, "nothing has come yet: the line is long"
    assert grown(4, small + 1, 0.0, 0.0) == 4, "the server may be busy"
    assert grown(4, small + 1, 0.0, 1.0) == 8
    assert grown(8, 99, 1e4, GROWTH * 1e4) == 16
    assert grown(8, 99, 1e4, GROWTH * 1e4 - 1) == 8, "the line is full"
    assert grown(4, 99, 0.0, 4 * FAST_BYTES_PER_SECOND) == 4, "the line is quick"
    assert grown(4, 5, 0.0, 0.0) == 5
    assert grown(MOST_CONNECTIONS, 99, 0.0, 0.0) == MOST_CONNECTIONS
