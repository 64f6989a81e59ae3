"""Which piece a server fetches next, and from whom: no I/O and no clock.

Pieces that few near servers have come first, and each server begins at another place, so that those
that fetch together soon have different pieces to give. From outside its zone a server takes the
pieces it brings there; others only once nobody near has had anything for it for a while, and then
one at a time. What is fetched too slowly is fetched from somebody else as well, and the first to
have it counts.

Invariants: a piece has two carriers at most; it is complete once; the trainer, or the store, is
asked last but for what this server brings.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

OUTSIDE: Final = ""  # name of the trainer, or of the store, among the sources
PARTS: Final = 64  # as in `rlboost_jax.manager.policies.weight_sources`
GROUP_BYTES: Final = 2**20  # small pieces that follow each other are fetched by one request
ASKING_SECONDS: Final = 0.5  # for near servers to say what they have, at first
PATIENCE_SECONDS: Final = 1.0  # without anything to fetch near, before one piece comes from outside
PATIENT: Final = 10.0  # times as patient is a server that brings nothing: hundreds of them may be
LEAST_PATIENCE_SECONDS: Final = 0.05  # which it is for one after the other
TOO_SLOW: Final = 3.0  # times that a piece usually takes, before another source is asked, too
GRACE_SECONDS: Final = 2.0  # that are added to that
UNKNOWN_SECONDS: Final = 2.0  # that a piece takes where nobody knows it yet
SILENT_SECONDS: Final = 5.0  # without a byte, after which a source near or far counts as slow


@dataclass(eq=False, slots=True)
class Fetching:
    """Pieces that follow each other, on their way from one source.

    Attributes:
        began_at, moved_at: when they were asked for, and when bytes of them came last.
    """

    source: str
    pieces: range
    began_at: float
    moved_at: float


@dataclass(eq=False, slots=True)
class _Source:
    near: bool
    holds: NDArray[np.bool_]
    slots: int  # requests at a time
    known: bool = True  # what it has
    fetching: list[Fetching] = field(default_factory=list)
    not_before: float = -math.inf


class Swarm:
    """Plan of one version's pieces.

    Args:
        sizes: of all pieces, in bytes.
        missing: numbers of those to fetch.
        start: number of the piece to begin with; other servers begin at others.
        outside_slots: requests at a time to the trainer, or the store.
    """

    def __init__(
        self, sizes: Sequence[int], missing: Iterable[int], *, start: int, outside_slots: int
    ) -> None:
        count = len(sizes)
        self._sizes = np.asarray(sizes, np.int64)
        self._missing = np.zeros(count, bool)
        self._missing[list(missing)] = True
        self._order = (np.arange(count) - start) % max(1, count)
        self._carriers = np.zeros(count, np.int8)
        self._own = np.ones(count, bool)
        self._outside = _Source(near=False, holds=np.ones(count, bool), slots=outside_slots)
        self._sources: dict[str, _Source] = {OUTSIDE: self._outside}
        self._far = False  # what this server brings comes from servers of other zones
        self._rates: list[float] = []  # bytes per second of what has come, the last ones
        self._outside_seconds = 0.0  # that a request to the outside takes
        self._began_at = math.inf
        self._waits_since = math.inf  # nothing near is to be had since
        self._patience = PATIENCE_SECONDS

    @property
    def complete(self) -> bool:
        return not self._missing.any()

    @property
    def sources(self) -> tuple[str, ...]:
        """Names of the servers that are asked now."""
        return tuple(name for name in self._sources if name != OUTSIDE)

    def bring(self, parts: int) -> None:
        """Set the parts that this server brings to its zone: bit i is for pieces i, i + 64, …"""
        bits = [bool(parts >> (number % PARTS) & 1) for number in range(len(self._sizes))]
        self._own = np.asarray(bits, bool)

    def outside(self, slots: int) -> None:
        """Set the requests at a time to the trainer, or the store."""
        self._outside.slots = slots

    def share(self, most: int) -> None:
        """Set the requests at a time to all servers together, at least one to each."""
        servers = [source for name, source in self._sources.items() if name != OUTSIDE]
        for source in servers:
            source.slots = max(1, most // len(servers))

    def add(self, name: str, *, near: bool, slots: int) -> None:
        """Add a server to fetch from; what it has is not known yet."""
        if name not in self._sources:
            holds = np.zeros(len(self._sizes), bool)
            self._sources[name] = _Source(near=near, holds=holds, slots=slots, known=False)
        self._far = any(not s.near for n, s in self._sources.items() if n != OUTSIDE)

    def drop(self, name: str) -> list[Fetching]:
        """Stop asking a server; returns what was on its way from there, which is to be ended."""
        source = self._sources.pop(name, None)
        self._far = any(not s.near for n, s in self._sources.items() if n != OUTSIDE)
        if source is None:
            return []
        for fetching in source.fetching:
            self._carriers[fetching.pieces] -= 1
        return source.fetching

    def holds(self, name: str, bitmap: bytes) -> int:
        """Note which pieces a server has; returns how many. Too short a map means: none further."""
        if (source := self._sources.get(name)) is None:
            return 0
        count = len(self._sizes)
        bits = np.unpackbits(np.frombuffer(bitmap, np.uint8), bitorder="little")[:count]
        source.known = True
        source.holds[:] = False
        source.holds[: len(bits)] = bits.astype(bool)
        return int(source.holds.sum())

    def arrived(self, number: int) -> bool:
        """Note that a piece is complete and right; returns whether it was missing."""
        new = bool(self._missing[number])
        self._missing[number] = False
        return new

    def lacks(self, number: int) -> bool:
        return bool(self._missing[number])

    def ended(self, fetching: Fetching, num_bytes: int, now: float) -> None:
        """Note that a request is over, with what it has brought."""
        source = self._sources.get(fetching.source)
        if source is None or fetching not in source.fetching:
            return  # it was dropped
        source.fetching.remove(fetching)
        self._carriers[fetching.pieces] -= 1
        seconds = max(now - fetching.began_at, 1e-6)
        if num_bytes:
            self._rates = [*self._rates[-31:], num_bytes / seconds]
            if fetching.source == OUTSIDE:
                self._outside_seconds = max(seconds, self._outside_seconds / 2)
            else:
                self._patience = PATIENCE_SECONDS
                self._waits_since = math.inf

    def pause(self, name: str, until: float) -> None:
        """Ask a source for nothing until then: it has as much to do as it takes."""
        if (source := self._sources.get(name)) is not None:
            source.not_before = until

    def silent(self, now: float) -> list[str]:
        """Servers from which no byte has come for too long though they were asked."""

        def is_silent(fetching: Fetching) -> bool:
            limit = max(SILENT_SECONDS, 2 * self._usual_seconds(fetching))
            return now - fetching.moved_at > limit

        return [
            name
            for name, source in self._sources.items()
            if name != OUTSIDE and any(map(is_silent, source.fetching))
        ]

    def outpaced(self) -> list[Fetching]:
        """Requests whose pieces have all come from elsewhere meanwhile."""
        return [
            fetching
            for source in self._sources.values()
            for fetching in source.fetching
            if not self._missing[fetching.pieces].any()
        ]

    def next_ones(self, now: float) -> Iterator[Fetching]:
        """Requests to begin now: for each source that has room."""
        copies = self._near_copies()
        for near in (True, False):
            for name, source in list(self._sources.items()):
                while (
                    source.near == near
                    and len(source.fetching) < source.slots
                    and source.not_before <= now
                    and (pieces := self._next(name, source, copies, now)) is not None
                ):
                    fetching = Fetching(name, pieces, now, now)
                    source.fetching.append(fetching)
                    self._carriers[pieces] += 1
                    yield fetching

    def _next(
        self, name: str, source: _Source, copies: NDArray[np.int64], now: float
    ) -> range | None:
        free = self._missing & source.holds & (self._carriers == 0)
        if not source.near:
            if self._asks(now):
                return None
            free &= self._own & (copies == 0)
            if name == OUTSIDE and self._far:
                free[:] = False
        if free.any():
            return self._grouped(free, copies)
        late = self._missing & source.holds & (self._carriers == 1) & self._late(name, now)
        if late.any():
            return self._grouped(late, copies, one=True)
        if name == OUTSIDE and not source.fetching and self._has_waited(copies, now):
            self._patience = max(LEAST_PATIENCE_SECONDS, self._patience / 2)
            self._waits_since = now
            return self._grouped(self._missing & (self._carriers == 0), copies, one=True)
        return None

    def _asks(self, now: float) -> bool:
        """Whether near servers may still say that they have what would come from outside."""
        self._began_at = min(self._began_at, now)
        unknown = any(source.near and not source.known for source in self._sources.values())
        return unknown and now < self._began_at + ASKING_SECONDS

    def _near_copies(self) -> NDArray[np.int64]:
        """Near servers that have each piece."""
        copies = np.zeros(len(self._sizes), np.int64)
        for source in self._sources.values():
            if source.near:
                copies += source.holds
        return copies

    def _grouped(
        self, candidates: NDArray[np.bool_], copies: NDArray[np.int64], one: bool = False
    ) -> range:
        """The rarest candidate, with those that follow it while they are small."""
        rank = np.where(candidates, copies * len(self._order) + self._order, np.iinfo(np.int64).max)
        first = last = int(rank.argmin())
        size = int(self._sizes[first])
        while (
            not one
            and last + 1 < len(candidates)
            and candidates[last + 1]
            and size + self._sizes[last + 1] <= GROUP_BYTES
        ):
            last += 1
            size += int(self._sizes[last])
        return range(first, last + 1)

    def _has_waited(self, copies: NDArray[np.int64], now: float) -> bool:
        """Whether nobody has had anything for this server for longer than others may need."""
        open_ones = self._missing & (self._carriers == 0)
        if not open_ones.any() or (open_ones & (copies > 0)).any():
            self._waits_since = math.inf
            return False
        self._waits_since = min(self._waits_since, now)
        others = 2 * self._outside_seconds  # what they bring takes them as long
        factor = self._patience / PATIENCE_SECONDS * (1.0 if self._own.any() else PATIENT)
        return now - self._waits_since >= factor * max(PATIENCE_SECONDS, others)

    def _usual_seconds(self, fetching: Fetching) -> float:
        """Seconds in which as many bytes usually come."""
        if not self._rates:
            return UNKNOWN_SECONDS
        return float(self._sizes[fetching.pieces].sum() / np.median(self._rates))

    def _late(self, name: str, now: float) -> NDArray[np.bool_]:
        """Pieces that another source has been carrying for too long."""
        late = np.zeros(len(self._sizes), bool)
        for carrier, source in self._sources.items():
            for fetching in source.fetching:
                if carrier == name:
                    continue
                limit = GRACE_SECONDS + TOO_SLOW * self._usual_seconds(fetching)
                if name == OUTSIDE:
                    limit = max(limit, 2 * self._outside_seconds)
                late[fetching.pieces] = now - fetching.began_at > limit
        return late
