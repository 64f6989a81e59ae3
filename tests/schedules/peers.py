"""Servers that fetch weights from each other, in a simulated run: what they offer, hear and say."""

import random
from typing import Any

from rlboost_jax import messages as m
from rlboost_jax.trust.transfers import puller_of

FAULTS: tuple[m.SourceFault, ...] = ("unreachable", "slow", "wrong")


def offer_of(world: Any, *, reserved: bool) -> m.PeerOffer | None:
    """What the next server of a world offers; every fourth cannot listen."""
    number = len(world.servers)
    if reserved or not world.settings.peers:
        return None
    address = "" if number % 4 == 3 else f"10.0.0.{number % 250}:{1000 + number}"
    return m.PeerOffer(address=address, key=number.to_bytes(4, "little"), certificate=b"")


def check_sources(server: Any, message: m.FetchFrom) -> None:
    """Sources are other servers that listen, each with a token for this server and version."""
    by_address = {one.peer.address: one for one in server.world.servers if one.peer}
    assert server.world.settings.peers and not server.reserved
    assert 0 <= message.parts < 2**64
    assert len({source.name for source in message.sources}) == len(message.sources)
    for source in message.sources:
        other = by_address[source.address]
        assert source.address and other is not server, "sent to itself, or to one that is deaf"
        assert puller_of(source.token, other.peer.key, message.root) == server.called


def used(server: Any, heard: m.FetchFrom) -> m.SourcesUsed:
    """What a server says of its sources. Some fail it, and some servers say what is not true."""
    chance = random.Random(f"{heard.root} {server.called} {len(server.streams)}")
    names = [source.name for source in heard.sources]
    root = heard.root
    if chance.random() < 0.2:  # of servers that it was not sent to, or of another version
        names = [one.called for one in server.world.servers[: m.MAX_OUTCOMES] if one.called]
        root = heard.root if chance.random() < 0.5 else "of long ago"
    outcomes = tuple(
        m.SourceOutcome(
            source=name,
            fetched_bytes=chance.randrange(2**30),
            seconds=chance.choice((0.0, 0.1, 3.0)),
            fault=chance.choice(FAULTS) if chance.random() < 0.3 else "",
        )
        for name in names
    )
    return m.SourcesUsed(root=root, outcomes=outcomes, outside_bytes=chance.randrange(2**20))
