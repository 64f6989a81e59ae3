"""Sources that the manager hands to servers which fetch a version."""

from rlboost_jax import messages as m
from rlboost_jax.manager.policies.weight_sources import PARTS
from rlboost_jax.trust.seal import root_of
from rlboost_jax.trust.transfers import puller_of
from tests.manager.desk import Desk
from tests.manager.fakes import manifest, ready, settings

ALL = 2**PARTS - 1


def offer(number: int, address: str | None = None) -> m.PeerOffer:
    where = f"10.0.0.{number}:7000" if address is None else address
    return m.PeerOffer(address=where, key=bytes([number]) * 32, certificate=b"c")


def desk(*, peers: bool = True) -> Desk:
    made = Desk(settings(peers=peers))
    made.open_run()
    made.publish(0)
    return made


def sources(desk: Desk, stream: int) -> list[str]:
    """Names of the sources that the last event handed to a stream."""
    (message,) = desk.sent(m.FetchFrom, stream)
    return [source.name for source in message.sources]


def used(desk: Desk, stream: int, fault: m.SourceFault, source: str) -> None:
    outcome = m.SourceOutcome(source=source, fetched_bytes=0, seconds=0.0, fault=fault)
    desk.server(stream, m.SourcesUsed(root=root_of(manifest(0, "d")), outcomes=(outcome,)))


def test_a_joiner_is_sent_to_a_server_that_has_the_version() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3))
    there.join(4, peer=offer(4))
    (message,) = there.sent(m.FetchFrom, 4)
    (source,) = message.sources
    assert (source.name, source.address, source.near) == ("server-3", "10.0.0.3:7000", True)
    assert puller_of(source.token, offer(3).key, root_of(manifest(0, "d"))) == "server-4"
    assert puller_of(source.token, offer(3).key, root_of(manifest(1, "d"))) is None
    assert puller_of(source.token, offer(4).key, root_of(manifest(0, "d"))) is None


def test_nothing_is_said_to_servers_of_a_release_before_nor_without_the_setting() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3))
    there.join(4)
    assert not there.sent(m.FetchFrom)
    without = desk(peers=False)
    without.join(3, 0, peer=offer(3))
    without.join(4, peer=offer(4))
    assert not without.sent(m.FetchFrom)


def test_all_that_fetch_a_new_version_divide_it() -> None:
    there = desk()
    for stream in range(3, 7):
        there.join(stream, 0, peer=offer(stream), nonce=str(stream))
    there.publish(1)
    said = {stream: there.sent(m.FetchFrom, stream)[0] for stream in range(3, 7)}
    assert sum(message.parts for message in said.values()) == ALL  # each part once
    assert all(len(message.sources) == 3 for message in said.values())
    # In another zone nobody has it either: it comes from who brings it to the first.
    there.join(7, peer=offer(7), zone="elsewhere")
    (message,) = there.sent(m.FetchFrom, 7)
    assert message.parts == ALL and not any(source.near for source in message.sources)


def test_a_server_that_dials_again_is_not_sent_to_itself() -> None:
    there = desk()
    there.join(3, 0, instance="", nonce="n", peer=offer(3))
    there.join(4, instance="", nonce="n", peer=offer(3))
    (message,) = there.sent(m.FetchFrom, 4)
    assert not message.sources and message.parts == ALL


def test_a_source_that_goes_is_replaced_and_its_parts_are_others() -> None:
    there = desk()
    for stream in range(3, 6):
        there.join(stream, 0, peer=offer(stream), nonce=str(stream))
    there.publish(1)
    parts = there.sent(m.FetchFrom, 4)[0].parts
    there.server(3, m.Goodbye(reason="SIGTERM"))
    assert sources(there, 4) == ["server-5"]
    later = there.sent(m.FetchFrom, 4)[0].parts, there.sent(m.FetchFrom, 5)[0].parts
    assert sum(later) == ALL and later[0] & parts == parts


def test_a_source_that_fails_one_server_is_not_handed_to_it_again_and_works_on() -> None:
    there = desk()
    for stream in (3, 4):
        there.join(stream, 0, peer=offer(stream), nonce=str(stream))
    there.join(5, peer=offer(5))
    there.join(6, peer=offer(6))
    used(there, 5, "wrong", "server-3")
    assert "server-3" not in sources(there, 5)
    there.join(7, peer=offer(7))
    assert "server-3" in sources(there, 7)  # one server's word
    used(there, 6, "wrong", "server-3")
    there.join(8, peer=offer(8))
    assert "server-3" not in sources(there, 8)  # two servers' word
    assert not there.records("quarantined") and 3 in there.manager.owners.roster.streams


def test_what_is_said_of_servers_it_was_not_sent_to_counts_for_nothing() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3))
    for stream in (4, 5, 6):
        there.join(stream, peer=offer(stream))
    for stream in (4, 5, 6):
        wrong = m.SourceOutcome(source="server-3", fetched_bytes=1, seconds=1.0, fault="wrong")
        there.server(stream, m.SourcesUsed(root="another", outcomes=(wrong,)))
        used(there, stream, "wrong", "server-9")
    there.join(7, peer=offer(7))
    assert "server-3" in sources(there, 7)


def test_a_server_that_cannot_listen_only_fetches() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3, address=""))
    there.join(4, 0, peer=offer(4))
    there.join(5, peer=offer(5, address=""))
    assert sources(there, 5) == ["server-4"]
    there.server(5, ready(0))
    there.join(6, peer=offer(6))
    assert sources(there, 6) == ["server-4"]


def test_floods_of_remarks_are_passed_over_and_cost_no_server() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3))
    there.join(4, peer=offer(4))
    lines = 0
    for _ in range(200):
        used(there, 4, "", "server-3")
        lines += len(there.records("exchanged"))
    assert lines == 60 and 4 in there.manager.owners.roster.streams


def test_bytes_from_servers_are_reported_once() -> None:
    there = desk()
    assert there.manager.owners.peers.take_exchanged() is None
    there.join(3, 0, peer=offer(3))
    there.join(4, peer=offer(4))
    outcome = m.SourceOutcome(source="server-3", fetched_bytes=100, seconds=1.0)
    there.server(4, m.SourcesUsed(root=root_of(manifest(0, "d")), outcomes=(outcome,)))
    taken = there.manager.owners.peers.take_exchanged
    assert [taken(), taken()] == [100, 0]


def test_what_has_been_exchanged_is_written_down() -> None:
    there = desk()
    there.join(3, 0, peer=offer(3))
    there.join(4, peer=offer(4))
    outcome = m.SourceOutcome(source="server-3", fetched_bytes=100, seconds=1.0)
    root = root_of(manifest(0, "d"))
    there.server(4, m.SourcesUsed(root=root, outcomes=(outcome,), outside_bytes=7, wasted_bytes=3))
    (record,) = there.records("exchanged")
    assert record.detail == {
        "peer_bytes": 100, "outside_bytes": 7, "wasted_bytes": 3, "faults": {},
    }  # fmt: skip
