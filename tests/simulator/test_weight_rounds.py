"""Versions on their way in rounds: closed forms, what no plan can beat, and where bytes go."""

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.manager.policies.weight_sources import PeerSources, VersionPeer
from rlboost_jax.simulator.version_spread import VersionSpread
from rlboost_jax.simulator.weight_rounds import spread

# Numbers of the issue, a thousandth of the bytes.
VERSION = VersionSpread(
    version_bytes=30e6, piece_bytes=64e3, trainer_rate=25e6, server_rate=6e6, zones=[0]
)


def alone(peers: Sequence[VersionPeer], **_: object) -> dict[str, PeerSources]:
    """Everybody has everything from the trainer."""
    return {peer.name: PeerSources() for peer in peers}


def chain(peers: Sequence[VersionPeer], **_: object) -> dict[str, PeerSources]:
    """Each server has everything from the one before, the first from the trainer."""
    names = [peer.name for peer in peers]
    first = {names[0]: PeerSources()}
    pairs = itertools.pairwise(names)
    return first | {b: PeerSources(near=(a,), parts=frozenset()) for a, b in pairs}


def zoned(count: int, zones: int) -> list[int]:
    return [number % zones for number in range(count)]


def test_one_joiner_takes_what_the_slower_link_takes():
    for trainer, server in ((25e6, 6e6), (2e6, 6e6)):
        version = replace(VERSION, trainer_rate=trainer, server_rate=server)
        # It ends with a round, and a shorter piece leaves the rest of its last one unused.
        length = version.piece_bytes / server
        expected = 30e6 / min(trainer, server)
        assert expected <= spread(version).seconds <= expected * 1.5 + length
    exact = replace(VERSION, version_bytes=64e3 * 100)
    assert spread(exact).seconds == pytest.approx(64e5 / 6e6)


@pytest.mark.parametrize("count", [2, 8, 30])
def test_from_the_trainer_alone_servers_share_its_link(count: int):
    rates = {"trainer_rate": 6e6, "server_rate": 6e6}
    version = replace(VERSION, zones=[0] * count, version_bytes=64e3 * 20, **rates)
    outcome = spread(version, alone)
    assert outcome.seconds == pytest.approx(count * version.version_bytes / 6e6)
    assert outcome.trainer_bytes == pytest.approx(count * version.version_bytes)


@pytest.mark.parametrize(("count", "pieces"), [(2, 5), (10, 50), (40, 7)])
def test_a_chain_is_a_pipeline(count: int, pieces: int):
    """The last server has the last piece once it has gone over every link: P + N - 1 pieces."""
    version = replace(
        VERSION, zones=[0] * count, version_bytes=64e3 * pieces, trainer_rate=6e6, from_trainer=1
    )
    outcome = spread(version, chain)
    expected = (pieces + np.arange(count)) * 64e3 / 6e6
    np.testing.assert_allclose(outcome.current_seconds, expected)
    assert outcome.trainer_bytes == pytest.approx(version.version_bytes)


def test_a_request_costs_its_latency():
    version = replace(
        VERSION, version_bytes=64e3 * 50, round_seconds=64e3 / 6e6 / 8, from_trainer=1
    )
    late = replace(version, latency_seconds=3 * version.round_seconds)
    assert spread(version).seconds == pytest.approx(50 * 8 * version.round_seconds)
    assert spread(late).seconds == pytest.approx(50 * (8 + 3) * version.round_seconds)


def drawn(seed: int) -> VersionSpread:
    """A fleet of one to three zones with faults of all kinds."""
    chance = random.Random(seed)
    count, zones = chance.randint(2, 24), chance.randint(1, 3)
    some = chance.sample(range(count), count // 2)
    lost, slow, liars = some[0::3], some[1::3], some[2::3]
    return VersionSpread(
        version_bytes=chance.uniform(1e6, 4e6),
        piece_bytes=64e3,
        trainer_rate=chance.choice((2e6, 25e6)),
        server_rate=6e6,
        zones=[chance.randrange(zones) for _ in range(count)],
        between_zones_rate=chance.choice((float("inf"), 3e6)),
        latency_seconds=chance.choice((0.0, 0.03)),
        patience_seconds=0.7,
        lost={server: chance.uniform(0, 1.0) for server in lost},
        slow={server: chance.choice((0.0, 1e5)) for server in slow},
        liars=liars,
    )


@pytest.mark.parametrize("seed", range(30))
def test_whatever_fails_all_that_are_left_have_it_and_bytes_are_accounted_for(seed: int):
    version = drawn(seed)
    outcome = spread(version, seed=seed)
    left = np.setdiff1d(np.arange(len(version.zones)), list(version.lost or {}))
    assert np.isfinite(outcome.current_seconds[left]).all()
    size = version.version_bytes
    total = outcome.received_bytes.sum()
    assert (outcome.received_bytes[left] >= size * (1 - 1e-6)).all()
    kept = total - outcome.wasted_bytes  # what lost servers had is neither wasted nor all
    assert len(left) * size * (1 - 1e-5) <= kept <= len(version.zones) * size * (1 + 1e-5)
    assert outcome.trainer_bytes <= total and outcome.crossing_bytes <= total
    fewest = replace(version, zones=[version.zones[server] for server in left])
    assert outcome.seconds >= fewest.floor_seconds * (1 - 1e-9)
    again = spread(version, seed=seed)
    np.testing.assert_array_equal(outcome.current_seconds, again.current_seconds)


@pytest.mark.parametrize("seed", range(10))
def test_no_plan_is_faster_than_the_floor_and_without_faults_nothing_is_lost(seed: int):
    version = replace(drawn(seed), lost=None, slow=None, liars=(), patience_seconds=1e9)
    planners: Mapping[str, object] = {"chain": chain, "alone": alone}
    for planner in (None, *planners.values()):
        outcome = spread(version, planner) if planner else spread(version)  # type: ignore[arg-type]
        assert outcome.seconds >= version.floor_seconds * (1 - 1e-9)
        assert outcome.wasted_bytes == 0.0
        total = len(version.zones) * version.version_bytes
        assert outcome.received_bytes.sum() == pytest.approx(total)


@pytest.mark.parametrize(("count", "zones"), [(16, 1), (16, 3), (100, 3), (300, 2)])
def test_all_have_it_within_half_as_much_again_as_a_pipeline_takes(count: int, zones: int):
    version = replace(VERSION, zones=zoned(count, zones))
    outcome = spread(version)
    assert outcome.seconds <= 1.5 * version.pipeline_seconds
    assert outcome.trainer_bytes == pytest.approx(version.version_bytes)
    assert outcome.crossing_bytes == pytest.approx((zones - 1) * version.version_bytes)


@pytest.mark.soak
def test_ten_thousand_servers_have_30_gb_within_half_as_much_again_as_a_pipeline_takes():
    """A minute."""
    version = replace(VERSION, zones=zoned(10_000, 3))
    outcome = spread(version)
    assert outcome.seconds <= 1.5 * version.pipeline_seconds
    assert outcome.trainer_bytes == pytest.approx(version.version_bytes)


def test_a_source_that_dies_costs_its_unfinished_pieces():
    """The first of a chain of zones has every piece that comes from the trainer."""
    version = replace(VERSION, zones=zoned(30, 2), lost={0: 1.0, 1: 2.0}, patience_seconds=1e9)
    calm = spread(replace(version, lost=None))
    outcome = spread(version)
    assert np.isnan(outcome.current_seconds[:2]).all()
    assert np.isfinite(outcome.current_seconds[2:]).all()
    # Of each transfer from or to it, less than a piece: 8 near and 3 far, and its own.
    assert 0 < outcome.wasted_bytes <= 2 * 64e3 * 3 * 12
    assert outcome.seconds <= 1.2 * calm.seconds


@pytest.mark.parametrize("fault", ["lies", "stalls", "is slow"])
def test_a_source_that_fails_others_costs_their_patience(fault: str):
    version = replace(VERSION, zones=zoned(20, 1))
    match fault:
        case "lies":
            outcome = spread(replace(version, liars=[3]))
            assert 0 < outcome.wasted_bytes <= 19 * 64e3, "it is asked once by each"
        case "stalls":
            outcome = spread(replace(version, slow={3: 0.0}))
        case _:
            outcome = spread(replace(version, slow={3: 1e4}))
    assert outcome.seconds <= version.pipeline_seconds + version.patience_seconds
    assert outcome.trainer_bytes <= 1.5 * version.version_bytes


def test_what_never_comes_is_an_error():
    with pytest.raises(RuntimeError, match="do not have after 5 rounds"):
        spread(VERSION, most_rounds=5)
