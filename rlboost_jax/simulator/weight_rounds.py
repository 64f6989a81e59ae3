"""How one version comes to many servers that also fetch it from each other, in rounds.

Transfers are too many for events: 10,000 servers and 480 pieces are 4.8 million. So time goes on in
rounds of one length, and each round is a few operations on arrays: of servers and pieces, and of
servers and their sources. Who has which sources is the manager's own policy to say
(`manager.policies.weight_sources`), asked again when a server is lost or a source has failed.

A server fetches one piece at a time from each source, some from the trainer: such that it lacks and
the source has, drawn at random. Its own parts come from the sources abroad, or from the trainer
where it has none. If no source gives it a byte for `patience_seconds`, it asks the trainer for any
piece, until one does; ten times as long if all parts are others' to bring, for behind a narrow line
hundreds would ask for what is on its way already. It asks a source no more that gives none for so
long, or hardly any: less than `SLOW` times the rate at which one of its kind, near or far, has
given it a piece. Links are shared in equal parts, what one transfer cannot use going to others. A
transfer begins with a round and what is left of the round when it ends is unused, so a result is
late by half a round for a piece on average, and never early.

Invariants: no link carries more in a round than its rate allows; what was received was sent, and is
part of a piece that is there, on its way or wasted.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import numpy as np

from rlboost_jax.manager.policies.weight_sources import (
    MOST_FAR,
    MOST_NEAR,
    PARTS,
    SLOW,
    PeerSources,
    VersionPeer,
    plan_sources,
)
from rlboost_jax.simulator.streams import stream
from rlboost_jax.simulator.version_spread import (
    MOST_FROM_TRAINER,
    PATIENT,
    SpreadOutcome,
    VersionSpread,
)

_FIRST_OF_TRAINER: Final = MOST_NEAR + MOST_FAR
_SOURCES: Final = _FIRST_OF_TRAINER + MOST_FROM_TRAINER
_FILLS: Final = 3  # times that rates which transfers cannot use are handed to others
_ACCUSERS: Final = 2  # servers that a source has failed before nobody is sent to it any more
_NONE: Final = -1
_BITS: Final = np.array([1 << bit for bit in range(8)], np.uint8)
# Of each byte the places of its bits, and how many there are.
_PLACES: Final = np.array(
    [[b for b in range(8) if byte >> b & 1] + [0] * (8 - byte.bit_count()) for byte in range(256)]
)
_COUNTS: Final = np.array([byte.bit_count() for byte in range(256)])


class SourcePlanner(Protocol):
    """`plan_sources`, or something in its place."""

    def __call__(
        self,
        peers: Sequence[VersionPeer],
        *,
        before: Mapping[str, PeerSources] | None = None,
        wanting: Collection[str] | None = None,
        trainer_zone: str = "",
    ) -> dict[str, PeerSources]: ...


def spread(
    version: VersionSpread,
    planner: SourcePlanner = plan_sources,
    *,
    seed: int = 0,
    most_rounds: int = 100_000,
) -> SpreadOutcome:
    """Simulate until every server that is left has the version.

    Raises:
        RuntimeError: some have not, after `most_rounds`.
    """
    state = _Rounds(version, planner, seed)
    while not state.complete:
        if state.rounds == most_rounds:
            raise RuntimeError(f"a version that servers do not have after {most_rounds} rounds")
        state.go_on()
    return SpreadOutcome(
        current_seconds=state.current,
        received_bytes=state.received,
        trainer_bytes=state.trainer_bytes,
        crossing_bytes=state.crossing_bytes,
        wasted_bytes=state.wasted,
        rounds=state.rounds,
    )


class _Rounds:
    """N servers, P pieces, K sources of each server. The trainer is number N."""

    def __init__(self, version: VersionSpread, planner: SourcePlanner, seed: int) -> None:
        self._version, self._planner = version, planner
        self._random = stream("pieces", seed)
        N, P = len(version.zones), math.ceil(version.version_bytes / version.piece_bytes)
        self._N, self._names = N, [str(i) for i in range(N)]
        self._sizes = np.full(P, float(version.piece_bytes))
        self._sizes[-1] = version.version_bytes - (P - 1) * version.piece_bytes
        self._length = version.round_seconds or version.piece_bytes / version.server_rate
        self._zone = np.array([*version.zones, 0])
        self._sends = np.full(N + 1, float(version.server_rate))
        self._sends[N] = version.trainer_rate
        for server, rate in (version.slow or {}).items():
            self._sends[server] = rate
        self._lies = np.zeros(N + 1, bool)
        self._lies[list(version.liars)] = True
        self._to_lose = sorted((at, server) for server, at in (version.lost or {}).items())
        # Pieces that servers have, that come, and that are of their own parts: a bit for each.
        self._has = np.zeros((N + 1, math.ceil(P / 8)), np.uint8)
        self._has[N] = _packed(np.ones(P, bool))
        self._coming, self._brings = np.zeros_like(self._has[:N]), np.zeros_like(self._has[:N])
        self._missing = np.full(N, P)  # pieces
        self._sources = np.full((N, _SOURCES), _NONE)
        self._piece = np.full((N, _SOURCES), _NONE)  # that comes from a source
        self._left = np.zeros((N, _SOURCES))  # bytes of it
        self._since = np.zeros((N, _SOURCES))  # when it was asked for
        self._served_at = np.zeros(N)  # when something came last that was a server's to get
        self._best = np.zeros((N, 2))  # rate of a piece from a source near, and far
        self._alive = np.ones(N, bool)
        self._refused: dict[int, set[int]] = {}
        self._plans: dict[str, PeerSources] = {}
        self.current = np.full(N, np.nan)
        self.received = np.zeros(N)
        self.trainer_bytes = self.crossing_bytes = self.wasted = 0.0
        self.rounds = 0
        self._plan(None)

    @property
    def complete(self) -> bool:
        return not (self._alive & np.isnan(self.current)).any()

    def go_on(self) -> None:
        """Simulate one round."""
        now = self.rounds * self._length
        failed = self._lose(now) | self._abandon_late(now)
        if failed:
            self._plan(failed)
        self._ask(now)
        self._carry(now)
        self.rounds += 1
        self._note_complete(self.rounds * self._length)

    def _plan(self, wanting: set[int] | None) -> None:
        """Have the policy choose sources, for these servers at least; None: for all."""
        accused = Counter(other for others in self._refused.values() for other in others)
        peers = [
            VersionPeer(
                name=self._names[i],
                zone=str(self._zone[i]),
                listens=accused[i] < _ACCUSERS,
                whole=not self._missing[i],
                refused={self._names[other] for other in self._refused.get(i, ())},
            )
            for i in map(int, np.flatnonzero(self._alive))
        ]
        found = self._planner(
            peers,
            before={n: own for n, own in self._plans.items() if self._missing[int(n)]},
            wanting=None if wanting is None else {self._names[i] for i in wanting},
            trainer_zone="0",
        )
        self._plans.update(found)
        for name, own in found.items():
            server, slots = int(name), np.full(_SOURCES, _NONE)
            slots[: len(own.near)] = [int(other) for other in own.near]
            slots[MOST_NEAR : MOST_NEAR + len(own.far)] = [int(other) for other in own.far]
            slots[_FIRST_OF_TRAINER:][: self._version.from_trainer] = self._N
            self._change_sources(server, slots)
            parts = np.arange(len(self._sizes)) % PARTS
            self._brings[server] = _packed(np.isin(parts, list(own.parts)))

    def _change_sources(self, server: int, sources: np.ndarray) -> None:
        """Give a server other sources. Transfers from those that it keeps go on."""
        own = (self._sources, self._piece, self._left, self._since)
        old, *state = (array[server].copy() for array in own)
        self._drop(server, ~np.isin(old, sources))
        self._piece[server] = _NONE
        self._sources[server] = sources
        for slot in np.flatnonzero((old != _NONE) & (state[0] != _NONE) & np.isin(old, sources)):
            at_trainer = slot >= _FIRST_OF_TRAINER
            place = slot if at_trainer else np.flatnonzero(sources == old[slot])[0]
            for array, before in zip(own[1:], state, strict=True):
                array[server, place] = before[slot]

    def _drop(self, server: int, which: np.ndarray) -> None:
        """End transfers to a server from some of its sources."""
        which = which & (self._piece[server] >= 0)
        pieces = self._piece[server, which]
        self.wasted += float((self._sizes[pieces] - self._left[server, which]).sum())
        _unmark(self._coming, np.full(len(pieces), server), pieces)
        self._piece[server, which] = _NONE

    def _lose(self, now: float) -> set[int]:
        """Take away servers whose time has come; returns who had them as sources."""
        affected: set[int] = set()
        while self._to_lose and self._to_lose[0][0] <= now:
            _, gone = self._to_lose.pop(0)
            self._drop(gone, np.ones(_SOURCES, bool))
            self._alive[gone] = False
            self._has[gone] = 0
            self.current[gone] = np.nan
            self._sources[gone] = _NONE
            self._plans.pop(self._names[gone], None)
            of_it = self._sources == gone
            for server in map(int, np.flatnonzero(of_it.any(axis=1))):
                self._drop(server, of_it[server])
                affected.add(server)
            self._sources[of_it] = _NONE
        return {server for server in affected if self._alive[server]}

    def _abandon_late(self, now: float) -> set[int]:
        """Give up transfers that stall; returns the servers that want other sources."""
        seconds = now - self._since
        given = np.where(self._piece >= 0, self._sizes[self._piece] - self._left, 0.0)
        usual = np.repeat(self._best, (MOST_NEAR, _SOURCES - MOST_NEAR), axis=1)
        late = (self._piece >= 0) & (seconds > self._version.patience_seconds)
        late &= given <= SLOW * usual * seconds
        late[:, _FIRST_OF_TRAINER:] = False
        found = set(map(int, np.flatnonzero(late.any(axis=1))))
        for server in found:
            self._refuse(server, late[server])
        return found

    def _refuse(self, server: int, which: np.ndarray) -> None:
        self._refused.setdefault(int(server), set()).update(map(int, self._sources[server, which]))
        self._drop(server, which)
        self._sources[server, which] = _NONE

    def _ask(self, now: float) -> None:
        """Have each server ask each idle source for a piece, sources of its own parts first."""
        wants = self._alive & (self._missing > 0)
        patience = np.where(self._brings.any(axis=1), 1.0, PATIENT) * self._version.patience_seconds
        starved = now - self._served_at > patience
        from_trainer = (self._sources[:, MOST_NEAR:_FIRST_OF_TRAINER] == _NONE).all(axis=1)
        for slot in (*range(MOST_NEAR, _SOURCES), *range(MOST_NEAR)):
            rows = np.flatnonzero(
                wants & (self._sources[:, slot] >= 0) & (self._piece[:, slot] == _NONE)
            )
            if slot >= _FIRST_OF_TRAINER:
                rows = rows[(from_trainer & self._brings.any(axis=1) | starved)[rows]]
            if not len(rows):
                continue
            useful = self._has[self._sources[rows, slot]] & ~(self._has[rows] | self._coming[rows])
            if slot >= MOST_NEAR:
                useful &= np.where(starved[rows, None], np.uint8(255), self._brings[rows])
            chosen = _drawn(useful, self._random)
            rows, chosen = rows[chosen >= 0], chosen[chosen >= 0]
            self._piece[rows, slot] = chosen
            self._left[rows, slot] = self._sizes[chosen]
            self._since[rows, slot] = now
            _mark(self._coming, rows, chosen)

    def _carry(self, now: float) -> None:
        """Move bytes for a round, and note which pieces have come."""
        rows, slots = np.nonzero(self._piece >= 0)
        if not len(rows):
            return
        senders = self._sources[rows, slots]
        rates = self._rates(rows, senders)
        begins = self._since[rows, slots] + self._version.latency_seconds
        seconds = np.clip(now + self._length - begins, 0.0, self._length)
        moved = np.minimum(self._left[rows, slots], rates * seconds)
        self.received += np.bincount(rows, moved, minlength=self._N)
        self.trainer_bytes += float(moved[senders == self._N].sum())
        self.crossing_bytes += float(moved[self._zone[senders] != self._zone[rows]].sum())
        self._left[rows, slots] -= moved
        pieces = self._piece[rows, slots]
        own = self._brings[rows, pieces >> 3] & _BITS[pieces & 7] > 0
        self._served_at[rows[(own | (senders < self._N)) & (moved > 0)]] = now + self._length
        came = self._left[rows, slots] <= 1e-6 * self._version.piece_bytes
        rows, slots, senders, pieces = rows[came], slots[came], senders[came], pieces[came]
        wrong = self._lies[senders]
        _mark(self._has, rows[~wrong], pieces[~wrong])
        self._missing -= np.bincount(rows[~wrong], minlength=self._N)
        took = self._sizes[pieces] / (now + self._length - self._since[rows, slots])
        np.maximum.at(self._best, (rows, (slots >= MOST_NEAR).astype(int)), took)
        _unmark(self._coming, rows, pieces)
        self._piece[rows, slots] = _NONE
        if wrong.any():
            self.wasted += float(self._sizes[pieces[wrong]].sum())
            for server, slot in zip(rows[wrong], slots[wrong], strict=True):
                self._refuse(server, np.arange(_SOURCES) == slot)
            self._plan({int(server) for server in rows[wrong]})

    def _rates(self, rows: np.ndarray, senders: np.ndarray) -> np.ndarray:
        """Bytes per second of each transfer: equal shares of its links, then of what is left."""
        zones = int(self._zone.max()) + 1
        line = self._zone[senders] * zones + self._zone[rows]
        lines = np.full(zones * zones, float(self._version.between_zones_rate))
        lines[:: zones + 1] = math.inf
        links = [
            (senders, self._sends.copy()),
            (rows, np.full(self._N, float(self._version.server_rate))),
            *([(line, lines)] if np.isfinite(lines).any() else []),
        ]
        rates = np.zeros(len(rows))
        for _ in range(_FILLS):
            more = np.full(len(rows), math.inf)
            for number, free in links:
                count = np.bincount(number, minlength=len(free))
                np.minimum(more, (free / np.maximum(count, 1))[number], out=more)
            for number, free in links:
                free -= np.bincount(number, more, minlength=len(free))
                np.maximum(free, 0.0, out=free)
            rates += more
        return rates

    def _note_complete(self, now: float) -> None:
        complete = self._alive & np.isnan(self.current) & (self._missing == 0)
        for server in map(int, np.flatnonzero(complete)):
            self._drop(server, np.ones(_SOURCES, bool))
        self.current[complete] = now


def _packed(pieces: np.ndarray) -> np.ndarray:
    return np.packbits(pieces, bitorder="little")


def _mark(table: np.ndarray, rows: np.ndarray, pieces: np.ndarray) -> None:
    np.bitwise_or.at(table, (rows, pieces >> 3), _BITS[pieces & 7])


def _unmark(table: np.ndarray, rows: np.ndarray, pieces: np.ndarray) -> None:
    np.bitwise_and.at(table, (rows, pieces >> 3), ~_BITS[pieces & 7])


def _drawn(useful: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw a bit of each row among those that are set: a byte that has some, then one of it.

    Returns:
        Number of the bit; -1 where none is set.
    """
    there = useful != 0
    counts = there.sum(axis=1)
    ranks = np.floor(random.random(len(useful)) * counts)
    places = np.argmax(there.cumsum(axis=1, dtype=np.int16) > ranks[:, None], axis=1)
    octets = useful[np.arange(len(useful)), places]
    bits = _PLACES[octets, np.floor(random.random(len(useful)) * _COUNTS[octets]).astype(int)]
    return np.where(counts > 0, 8 * places + bits, _NONE)
