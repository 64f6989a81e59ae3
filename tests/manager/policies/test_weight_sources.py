"""PeerSources of a version's pieces: what a plan promises, for any fleet."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from rlboost_jax.manager.policies.weight_sources import (
    ALL_PARTS,
    MOST_FAR,
    MOST_NEAR,
    PARTS,
    PeerSources,
    VersionPeer,
    plan_sources,
)


def fleet(seed: int) -> list[VersionPeer]:
    """Servers of one to three zones, of all kinds."""
    chance = random.Random(seed)
    count, zones = chance.randint(1, 40), chance.randint(1, 3)
    names = [f"s{i}" for i in range(count)]
    return [
        VersionPeer(
            name=name,
            zone=f"z{chance.randrange(zones)}",
            listens=chance.random() < 0.8,
            whole=chance.random() < 0.2,
            rate=chance.choice((0.0, 1e5, 1e8)),
            load=chance.randrange(4),
            refused=frozenset(chance.sample(names, min(count, chance.randrange(3)))),
        )
        for name in names
    ]


def pulling(count: int, zone: str = "") -> list[VersionPeer]:
    return [VersionPeer(name=f"{zone}{i}", zone=zone) for i in range(count)]


def hops(plan: dict[str, PeerSources], start: str) -> int:
    """Steps until what one server has is with all, where each asks all its near sources."""
    having, steps = {start}, 0
    while len(having) < len(plan):
        more = {name for name, own in plan.items() if having.intersection(own.near)} - having
        assert more, "somebody never gets it"
        having |= more
        steps += 1
    return steps


@pytest.mark.parametrize("seed", range(300))
def test_a_plan_names_only_servers_that_can_serve_and_serves_all(seed: int) -> None:
    peers = fleet(seed)
    by_name = {peer.name: peer for peer in peers}
    plan = plan_sources(peers, trainer_zone="z0")
    assert plan == plan_sources(peers, trainer_zone="z0")
    assert plan.keys() == {peer.name for peer in peers if not peer.whole}
    for name, own in plan.items():
        puller = by_name[name]
        given = [*own.near, *own.far]
        assert len(set(given)) == len(given) and name not in given
        assert len(own.near) <= MOST_NEAR and len(own.far) <= MOST_FAR
        for source in map(by_name.__getitem__, given):
            assert source.listens and source.name not in puller.refused
        assert all(by_name[source].zone == puller.zone for source in own.near)
        assert all(by_name[source].zone != puller.zone for source in own.far)
        assert own.near or own.parts == ALL_PARTS


@pytest.mark.parametrize("seed", range(100))
def test_each_part_has_one_bringer_in_each_zone(seed: int) -> None:
    peers = [replace(peer, refused=()) for peer in fleet(seed)]
    plan = plan_sources(peers)
    for zone in {peer.zone for peer in peers}:
        able = [p.name for p in peers if p.zone == zone and p.listens and not p.whole]
        others = any(p.zone == zone and p.listens and p.whole for p in peers)
        if len(able) > 1 or (able and others):
            brought = Counter(part for name in able for part in plan[name].parts)
            assert brought == Counter(ALL_PARTS)


@pytest.mark.parametrize("count", [2, 3, 5, 16, 17, 100, 1000])
def test_a_piece_is_with_all_after_few_hops_and_nobody_is_asked_by_many(count: int) -> None:
    plan = plan_sources(pulling(count))
    asked = Counter(name for own in plan.values() for name in own.near)
    assert set(asked.values()) == {min(MOST_NEAR, count - 1)}
    assert all(hops(plan, start) <= 1 + count.bit_length() for start in list(plan)[:5])


def test_sixteen_joiners_divide_the_pieces_equally() -> None:
    plan = plan_sources(pulling(16))
    assert {len(own.parts) for own in plan.values()} == {PARTS // 16}
    # Of 14 pieces, fewer than there are servers, nobody brings two.
    assert max(len(own.parts & set(range(14))) for own in plan.values()) == 1


def test_between_zones_pieces_come_from_whoever_brought_them_to_the_first() -> None:
    peers = [*pulling(4, "a"), *pulling(6, "b"), *pulling(2, "c")]
    plan = plan_sources(peers, trainer_zone="a")
    assert all(not plan[peer.name].far for peer in peers[:4])  # from the trainer
    for peer in peers[4:]:
        own = plan[peer.name]
        assert own.far and all(name.startswith("a") for name in own.far)
        assert own.parts & plan[own.far[0]].parts
    without = plan_sources(peers, trainer_zone="d")
    assert not without["b0"].far and without["a0"].far  # most are in b


def test_parts_of_one_that_is_gone_go_to_the_others_who_keep_their_own() -> None:
    peers = pulling(5)
    before = plan_sources(peers)
    left = [peer for peer in peers if peer.name != "2"]
    after = plan_sources(left, before=before, wanting=())
    assert sum(len(own.parts) for own in after.values()) == PARTS
    for name, own in after.items():  # only those that get more are told
        assert own.parts > before[name].parts
    for name, own in plan_sources(left, before=after, wanting=()).items():
        raise AssertionError(f"{name} is planned for again: {own}")


def test_parts_of_one_that_has_everything_by_now_need_nobody_to_bring_them() -> None:
    peers = pulling(4)
    before = plan_sources(peers)
    first_done = [replace(peers[0], whole=True), *peers[1:]]
    assert plan_sources(first_done, before=before, wanting=()) == {}
    later = plan_sources([*first_done, VersionPeer(name="late")], before=before, wanting={"late"})
    assert "0" in later["late"].near
    gone = plan_sources(peers[1:], before=before, wanting=())
    assert set().union(*(own.parts for own in gone.values())) >= before["0"].parts


def test_servers_that_come_one_by_one_divide_the_pieces_too() -> None:
    peers, plan = [], {}
    messages = 0
    for peer in pulling(16):
        peers.append(peer)
        new = plan_sources(peers, before=plan, wanting=())
        plan |= new
        messages += len(new)
    sizes = [len(own.parts) for own in plan.values()]
    assert sum(sizes) == PARTS and max(sizes) <= 2 * min(sizes) + 1
    assert all(len(own.near) >= 4 for own in plan.values())
    assert messages <= 8 * 16  # not 16 * 16 / 2 and more


def test_a_joiner_among_whole_copies_takes_the_idle_fast_ones() -> None:
    peers = [
        VersionPeer(name="busy", whole=True, load=9, rate=1e8),
        *(VersionPeer(name=f"idle{i}", whole=True, rate=1e8) for i in range(4)),
        VersionPeer(name="slow", whole=True, rate=1e6),
        VersionPeer(name="joiner"),
    ]
    assert plan_sources(peers)["joiner"].near == ("idle0", "idle1", "idle2", "idle3")
    alone = [peer for peer in peers if peer.name in ("slow", "joiner")]
    assert plan_sources(alone)["joiner"].near == ("slow",)


def test_servers_that_cannot_listen_are_leaves() -> None:
    plan = plan_sources([*pulling(2), VersionPeer(name="leaf", listens=False)])
    assert set(plan["leaf"].near) == {"0", "1"} and not plan["leaf"].parts
    alone = plan_sources(
        [VersionPeer(name="a", listens=False), VersionPeer(name="b", listens=False)]
    )
    assert alone == {"a": PeerSources(), "b": PeerSources()}  # all from the trainer


def test_ten_thousand_servers_are_planned_for() -> None:
    peers = [VersionPeer(name=str(i), zone=f"z{i % 3}", whole=i % 10 == 0) for i in range(10_000)]
    plan = plan_sources(peers)
    assert len(plan) == 9_000 and all(own.near for own in plan.values())
    loads = Counter(name for own in plan.values() for name in own.near if int(name) % 10 == 0)
    assert max(loads.values()) - min(loads.values()) <= 2
