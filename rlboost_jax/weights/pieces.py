"""Which bytes a connection asks for next, so that a bad line is full and none of them come in vain.

What is to be fetched is one or more strings of bytes. Connections take pieces of them: small ones
at first and at the end, longer ones where a connection is fast. A connection that finds no piece
left takes the second half of one that another has hardly begun, or, where a connection has stalled,
all that is missing of its piece. If two fetch the same bytes, the first to arrive counts.

A `PiecePlan` does no I/O and has no clock. Invariants: each byte counts once; a piece that breaks
resumes at its last byte; the number of requests is bounded by the number of bytes.
"""

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rlboost_jax.platform.backoff import backoff_seconds

LEAST_BYTES: Final = 2**14  # of a piece: what TCP sends of an answer in its first round trip
FIRST_BYTES: Final = 2**18  # the longest piece of a connection whose rate is not known
MOST_BYTES: Final = 2**25
PIECE_SECONDS: Final = 2.0  # that a piece takes a connection of known rate
HELP_SECONDS: Final = 0.5  # that a piece has taken before another connection takes half of it
STALLED_SECONDS: Final = 1.0  # without a byte, until another connection carries the same bytes, too
FULL_STALLED_SECONDS: Final = 4.0  # the same where connections wait for each other
FIRST_CONNECTIONS: Final = 4
MOST_CONNECTIONS: Final = 32
SMALL_BYTES: Final = 2**21  # of a download that does not wait for a byte before it grows
GROWTH_SECONDS: Final = 0.25  # between two doublings of the connections
GROWTH: Final = 1.5  # in bytes per second since the last one, or there is no other
FAST_BYTES_PER_SECOND: Final = 2.0**18  # of a connection: such a line needs no more of them


@dataclass(eq=False, slots=True)
class Piece:
    """A range of bytes fetched by one request.

    Attributes:
        source: number of its string.
        at: the first byte that has not come.
        end: the byte after the last.
        began_at, moved_at: when it was first asked for, and when bytes of it came last.
        carriers: connections that bring it, two at most.
        failures: attempts in a row that brought next to nothing.
        not_before: it is not asked for again until then.
    """

    source: int
    at: int
    end: int
    began_at: float = -math.inf
    moved_at: float = -math.inf
    carriers: int = 0
    failures: int = 0
    not_before: float = -math.inf

    @property
    def missing(self) -> int:
        return self.end - self.at


class PiecePlan:
    """Plan of the pieces that connections fetch.

    Args:
        gaps: source, first byte and the byte after the last, of all that is to come.
        first_backoff_seconds: after a failure, doubling with each one in a row.

    Attributes:
        full: whether the line carries no more, however many connections there are: what helps one
            of them then takes from the others.
    """

    def __init__(self, gaps: Iterable[tuple[int, int, int]], first_backoff_seconds: float) -> None:
        self._gaps = deque(gap for gap in gaps if gap[1] < gap[2])
        self._waiting = sum(end - begin for _, begin, end in self._gaps)
        self._first = min(FIRST_BYTES, max(LEAST_BYTES, self._waiting // MOST_CONNECTIONS))
        self._pieces: list[Piece] = []  # that are not complete
        self._backoff = first_backoff_seconds
        self.full = False

    @property
    def complete(self) -> bool:
        return not (self._gaps or self._pieces)

    def useful_connections(self) -> int:
        """Number of connections that have something to fetch now or soon; there may be fewer."""
        return math.ceil(self._waiting / LEAST_BYTES) + sum(
            math.ceil(piece.missing / LEAST_BYTES) for piece in self._pieces
        )

    def next_piece(self, now: float, rate: float, connections: int) -> Piece | None:
        """The next piece for a free connection; None: nothing for the moment.

        Args:
            rate: of this connection, in bytes per second; 0: not known.
            connections: all there are.
        """
        idle = (p for p in self._pieces if not p.carriers and p.not_before <= now)
        piece = next(idle, None) or self._new(rate, connections) or self._helped(now)
        if piece is not None:
            if not piece.carriers:
                piece.began_at = piece.moved_at = now
            piece.carriers += 1
        return piece

    def arrived(self, piece: Piece, upto: int, now: float) -> tuple[int, int]:
        """Record that a connection has received its piece up to byte `upto`.

        Returns:
            The first byte that is new, and the byte after the last; equal where none is.
        """
        first, last = piece.at, min(max(piece.at, upto), piece.end)
        if last > first:
            piece.at, piece.moved_at = last, now
            if not piece.missing:
                self._pieces.remove(piece)
        return first, last

    def ended(self, piece: Piece) -> None:
        """Record that a connection no longer fetches the piece, for whatever reason."""
        piece.carriers -= 1

    def failed(self, piece: Piece, brought: int, now: float) -> int:
        """Record a failed attempt; returns the number of failures in a row.

        Args:
            brought: new bytes that the attempt had brought.
        """
        piece.failures = 0 if brought >= LEAST_BYTES else piece.failures + 1
        if piece.failures:
            piece.not_before = now + backoff_seconds(piece.failures - 1, first=self._backoff)
        return piece.failures

    def _new(self, rate: float, connections: int) -> Piece | None:
        if not self._gaps:
            return None
        size = self._first
        if rate:
            share = self._waiting // max(1, connections)
            size = max(LEAST_BYTES, min(MOST_BYTES, int(rate * PIECE_SECONDS), share))
        source, begin, end = self._gaps.popleft()
        cut = end if end - begin < size + LEAST_BYTES else begin + size
        if cut < end:
            self._gaps.appendleft((source, cut, end))
        self._waiting -= cut - begin
        piece = Piece(source, begin, cut)
        self._pieces.append(piece)
        return piece

    def _helped(self, now: float) -> Piece | None:
        """A piece, or the second half of one, that another connection fetches too slowly."""
        carried = [piece for piece in self._pieces if piece.carriers == 1]
        silence = FULL_STALLED_SECONDS if self.full else STALLED_SECONDS
        stalled = [piece for piece in carried if now - piece.moved_at >= silence]
        if stalled:
            return max(stalled, key=lambda piece: piece.missing)
        long = [
            piece
            for piece in carried
            if piece.missing >= 2 * LEAST_BYTES and now - piece.began_at >= HELP_SECONDS
        ]
        if self.full or not long:
            return None
        piece = max(long, key=lambda piece: piece.missing)
        half = Piece(piece.source, piece.end - piece.missing // 2, piece.end)
        piece.end = half.at
        self._pieces.append(half)
        return half


def grown(connections: int, useful: int, before: float, now: float) -> int:
    """Number of connections to use from now on: doubled where each is slow and more would help.

    TCP takes a lost packet for a sign to send less: a line that loses packets is filled by many
    connections and by no single one.

    While no byte comes the line may be long, or the server busy with the handshakes of others, to
    which every new connection adds. A small download is a matter of round trips, so it grows
    meanwhile; a larger one waits for its first byte: 32 servers that pulled 16 MiB at once opened
    ten times as many connections.

    Args:
        useful: as many as would have something to do.
        before: bytes per second of all together, as they were when there were fewer connections.
        now: the same at present.
    """
    if now == 0.0 and useful * LEAST_BYTES > SMALL_BYTES:
        return connections
    if now >= connections * FAST_BYTES_PER_SECOND or now < GROWTH * before:
        return connections
    return max(connections, min(2 * connections, useful, MOST_CONNECTIONS))
