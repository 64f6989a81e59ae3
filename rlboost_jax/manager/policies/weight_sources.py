"""Which servers have a version's pieces from which others: pure functions.

The trainer is to send a version about once, however many servers want it, and a line between two
zones is to carry each piece once. So each piece has one server in each zone that brings it there:
of the servers that fetch a version, each has a *share* of its pieces to bring. It may take these
from outside at once; all other pieces it takes from servers near it, which serve what they have
while they receive the rest. Since shares differ, every server soon has something that others want.

Servers of a zone that fetch the same version stand in a ring, in the order in which they came, and
each is handed those 1, 2, 4, … places further on. So each is handed to as many others, and a piece
is with n servers after log2 n hops. Whole copies are handed out by load and rate.

Source: TensorHub (arXiv 2604.09107) for servers that serve while they receive, and for lines
between sites that carry a version once; Stoica et al. 2001 (Chord) for the distances.
"""

import heapq
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Final

PARTS: Final = 64  # piece i is of part i mod 64
ALL_PARTS: Final = frozenset(range(PARTS))
MOST_NEAR: Final = 8  # sources of a server in its own zone
MOST_WHOLE: Final = 4  # of them with all pieces: more connections bring no more
MOST_FAR: Final = 3  # sources in other zones
SLOW: Final = 1 / 8  # of the usual rate: such a source is handed out where there is no other


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionPeer:
    """A server that has a version, or fetches it.

    Attributes:
        name: unlike that of any other.
        zone: where it is; lines within a zone are short and cost nothing.
        listens: others can fetch from it.
        whole: it has all pieces; else it fetches them.
        rate: bytes per second that it lately gave another server; 0: not known.
        load: servers that it was handed to and that still fetch.
        refused: names of sources that must not be handed to it: they have failed it.
    """

    name: str
    zone: str = ""
    listens: bool = True
    whole: bool = False
    rate: float = 0.0
    load: int = 0
    refused: Collection[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSources:
    """Sources of a server's pieces.

    Attributes:
        near: servers of its zone.
        far: servers of other zones, for the parts it has to bring; none: these are the trainer's to
            send. The trainer is also where a piece comes from that nobody else gives.
        parts: of 0..PARTS - 1, that it brings to its zone.
        among: servers of its zone that fetched the version when this was planned. Once there are
            twice as many it is planned anew.
    """

    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()
    parts: frozenset[int] = ALL_PARTS
    among: int = 0


def plan_sources(
    peers: Sequence[VersionPeer],
    *,
    before: Mapping[str, PeerSources] | None = None,
    wanting: Collection[str] | None = None,
    trainer_zone: str = "",
) -> dict[str, PeerSources]:
    """Return the sources of servers that fetch one version, by name.

    Args:
        peers: all that have the version or fetch it, in an order that lasts, such as that in which
            they joined.
        before: what they were handed before. A server keeps its parts for as long as it fetches.
        wanting: names of those to plan for; None: all. Servers whose parts change are planned for
            in any case.
        trainer_zone: the version comes from there.
    """
    known = before or {}
    zones: dict[str, list[VersionPeer]] = {}
    for peer in peers:
        zones.setdefault(peer.zone, []).append(peer)
    parts = {zone: shared_parts(members, known) for zone, members in zones.items()}
    first = _first_zone(zones, trainer_zone)
    wholes = {zone: _Wholes(members) for zone, members in zones.items()}
    abroad = _Wholes([peer for peer in peers if peer.whole])
    found = {}
    for zone, members in zones.items():
        ring = [peer for peer in members if peer.listens and not peer.whole]
        places = _places(members, ring)
        for peer, place in zip(members, places, strict=True):
            if peer.whole:
                continue
            own = parts[zone].get(peer.name, frozenset())
            kept = known.get(peer.name)
            changed = kept is None or kept.parts != own or 2 * kept.among <= len(ring)
            if not (changed or wanting is None or peer.name in wanting):
                continue
            near = whole = wholes[zone].take(peer, MOST_WHOLE)
            near += tuple(_along(ring, place, peer, MOST_NEAR - len(near)))
            if not near:
                own = ALL_PARTS  # nobody else brings it anything
            far: tuple[str, ...] = ()
            if own and not whole:
                far = abroad.take(peer, MOST_FAR, outside=zone)
                if not far and zone != first and first is not None:
                    far = _bringers(own, parts[first], zones[first], peer)
            found[peer.name] = PeerSources(near=near, far=far, parts=own, among=len(ring))
    return found


def shared_parts(
    members: Sequence[VersionPeer], before: Mapping[str, PeerSources]
) -> dict[str, frozenset[int]]:
    """Divide the parts between the servers of a zone that fetch a version and can pass it on.

    Whoever has parts keeps them, while nobody has more than twice as many as another. Those of
    servers that are gone go to the ones that have the fewest. Those of a server that has the whole
    version by now are there. At first that is one part after the other to one server after the
    other.

    Returns:
        Parts by name; servers without any are missing.
    """
    names = [peer.name for peer in members if peer.listens and not peer.whole][:PARTS]
    if not names:
        return {}
    owned: dict[str, set[int]] = {name: set() for name in names}
    free = set(ALL_PARTS)
    for peer in members:
        if peer.whole and peer.listens and peer.name in before:
            free -= before[peer.name].parts
    for name in names:
        if name in before:
            owned[name] = free & before[name].parts
            free -= owned[name]
    heap = [(len(owned[name]), place, name) for place, name in enumerate(names)]
    heapq.heapify(heap)
    for part in sorted(free):
        count, place, name = heap[0]
        owned[name].add(part)
        heapq.heapreplace(heap, (count + 1, place, name))
    while True:
        most = max(names, key=lambda name: len(owned[name]))
        least = min(names, key=lambda name: len(owned[name]))
        if len(owned[most]) <= 2 * len(owned[least]) + 1:
            return {name: frozenset(parts) for name, parts in owned.items() if parts}
        part = max(owned[most])
        owned[most].remove(part)
        owned[least].add(part)


class _Wholes:
    """Servers with all pieces, handed out by load and rate."""

    def __init__(self, members: Sequence[VersionPeer]) -> None:
        here = [peer for peer in members if peer.whole and peer.listens]
        rates = [peer.rate for peer in here if peer.rate > 0]
        self._usual = median_low(rates) if rates else 1.0
        self._heap = [
            (self._cost(peer, peer.load), place, peer.load, peer) for place, peer in enumerate(here)
        ]
        heapq.heapify(self._heap)

    def take(self, puller: VersionPeer, most: int, outside: str | None = None) -> tuple[str, ...]:
        """Hand out the sources that are used least, at most `most`; each has more load then.

        Args:
            outside: a zone; only sources of others.
        """
        taken: list[str] = []
        aside = []
        while self._heap and len(taken) < most:
            entry = heapq.heappop(self._heap)
            _, place, load, peer = entry
            if taken and self._is_slow(peer):  # and so are all that follow
                aside.append(entry)
                break
            if peer.name in puller.refused or peer.zone == outside:
                aside.append(entry)
            else:
                taken.append(peer.name)
                aside.append((self._cost(peer, load + 1), place, load + 1, peer))
        for entry in aside:
            heapq.heappush(self._heap, entry)
        return tuple(taken)

    def _is_slow(self, peer: VersionPeer) -> bool:
        return 0 < peer.rate < SLOW * self._usual

    def _cost(self, peer: VersionPeer, load: int) -> float:
        """Load beside the usual rate; slow sources come after all others."""
        relative = peer.rate / self._usual if peer.rate > 0 else 1.0
        return (load + 1) / relative + (1e6 if self._is_slow(peer) else 0.0)


def _places(members: Sequence[VersionPeer], ring: Sequence[VersionPeer]) -> Iterator[int]:
    """Place in the ring of each member: its own, or that of the next member that is in it."""
    place, own = 0, iter(ring)
    ahead = next(own, None)
    for peer in members:
        yield place
        if peer is ahead:
            place, ahead = place + 1, next(own, None)


def _along(
    ring: Sequence[VersionPeer], place: int, puller: VersionPeer, most: int
) -> Iterator[str]:
    """Names of the ring's servers 1, 2, 4, … places further on, then of those in between.

    In a long ring the distances grow by more than the factor 2, so that the last goes around.
    """
    size, given = len(ring), {puller.name}
    factor = max(2.0, size ** (1 / MOST_NEAR))
    jumps = [int(factor**power) for power in range(MOST_NEAR)]
    for distance in (*jumps, *range(3, min(size, 2 * MOST_NEAR))):
        if not ring or len(given) > most:
            return
        peer = ring[(place + distance) % size]
        if peer.name not in given and peer.name not in puller.refused:
            given.add(peer.name)
            yield peer.name


def _first_zone(zones: Mapping[str, Sequence[VersionPeer]], trainer_zone: str) -> str | None:
    """The zone that has the version from the trainer where nobody has it whole.

    That is the trainer's own, else the one where most fetch; None: no server could pass it on.
    """
    ready = {
        zone: sum(peer.listens and not peer.whole for peer in members)
        for zone, members in zones.items()
    }
    if ready.get(trainer_zone):
        return trainer_zone
    zone = max(ready, key=lambda zone: ready[zone], default=None)
    return zone if zone is not None and ready[zone] else None


def _bringers(
    parts: Collection[int],
    shares: Mapping[str, frozenset[int]],
    members: Sequence[VersionPeer],
    puller: VersionPeer,
) -> tuple[str, ...]:
    """Names of the servers that bring these parts to another zone, the most useful first."""
    useful = {name: len(own.intersection(parts)) for name, own in shares.items()}
    names = [p.name for p in members if useful.get(p.name) and p.name not in puller.refused]
    return tuple(sorted(names, key=lambda name: -useful[name])[:MOST_FAR])
