"""The policy of pools by itself: what always holds, and small cases done by hand."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.pool_choice import (
    STICKY,
    PoolOffer,
    chosen,
    merit,
    mix,
    ranked,
    surplus,
)

NOW = 100.0

OFFERS = st.lists(
    st.builds(
        PoolOffer,
        name=st.just(""),
        price=st.sampled_from([0.0, 0.5, 1.0, 2.5]),
        standing=st.integers(0, 4),
        waiting=st.integers(0, 2),
        free=st.integers(0, 5),
        speed=st.sampled_from([0.0, 1.0, 2.0, 100.0]),
        rate=st.sampled_from([0.0, 1e-4, 1e-1]),
        start_seconds=st.sampled_from([0.0, 60.0]),
        retry_at=st.sampled_from([-math.inf, NOW, NOW + 5.0]),
        single=st.booleans(),
    ),
    min_size=1,
    max_size=5,
).map(lambda many: [_named(offer, f"p{n}") for n, offer in enumerate(many)])


def _named(offer: PoolOffer, name: str) -> PoolOffer:
    values = {field: getattr(offer, field) for field in PoolOffer.__dataclass_fields__}
    return PoolOffer(**{**values, "name": name})


@given(OFFERS, st.integers(0, 12), st.sampled_from([math.inf, 0.0, 1.7, 4.0]), st.booleans())
def test_never_above_a_pools_most_or_the_budget_or_what_is_missing(offers, missing, room, explore):
    by_name = {offer.name: offer for offer in offers}
    found = chosen(offers, missing, NOW, most=13, room=room, explore=explore)
    for name in set(found):
        offer = by_name[name]
        assert found.count(name) <= offer.free
        assert offer.retry_at <= NOW
        if offer.single:
            assert found.count(name) + offer.waiting <= 1
    assert sum(by_name[name].price for name in found) <= room + 1e-6
    unknown = sum(not (offer.speed or offer.standing) for offer in offers)
    assert len(found) <= missing + explore * unknown
    for most in range(len(found)):
        fewer = chosen(offers, missing, NOW, most=most, room=room, explore=explore)
        assert fewer == found[:most]


@given(OFFERS, st.integers(0, 12))
def test_nothing_is_left_out_that_a_pool_could_take(offers, missing):
    found = chosen(offers, missing, NOW, most=12)
    assert len(found) == min(missing, sum(offer.may_take(NOW) for offer in offers))


@given(
    hourly=st.integers(0, 40),
    joined=st.integers(0, 40),
    waiting=st.integers(0, 6),
    price=st.integers(0, 9),
    missing=st.integers(0, 6),
)
def test_as_many_as_an_hour_may_cost(hourly, joined, waiting, price, missing):
    """Counted up in whole cents."""
    count = 0
    while count < missing and (not price or joined + (waiting + count + 1) * price <= hourly):
        count += 1
    offer = PoolOffer(name="any", price=price / 100, free=6)
    room = max(0.0, hourly / 100 - joined / 100 - waiting * price / 100)
    assert chosen([offer], missing, NOW, most=6, room=room) == ("any",) * count


SHOPS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 1.0, 2.5]), st.sampled_from([1.0, 2.0, 7.0]), st.integers(0, 4)
    ),
    min_size=1,
    max_size=3,
)


@given(SHOPS, st.integers(0, 12))
def test_no_fleet_that_is_as_fast_is_cheaper(shops, instances):
    """A part of one instance may make it cheaper: pools are filled in whole ones."""
    offers = [
        PoolOffer(name=f"p{n}", price=price, speed=speed, free=free)
        for n, (price, speed, free) in enumerate(shops)
    ]
    own = mix(ranked(offers, NOW), instances)
    dearest = max((o.price for o in offers if own.get(o.name)), default=0.0)
    speed = sum(o.speed * own.get(o.name, 0) for o in offers)
    hourly = sum(o.price * own.get(o.name, 0) for o in offers)
    for counts in product(*(range(o.free + 1) for o in offers)):
        if sum(o.speed * n for o, n in zip(offers, counts, strict=True)) >= speed:
            assert sum(o.price * n for o, n in zip(offers, counts, strict=True)) >= hourly - dearest


def test_work_is_bought_where_it_is_cheapest():
    fast = PoolOffer(name="fast", price=4.0, free=3, speed=200.0)
    cheap = PoolOffer(name="cheap", price=1.0, free=3, speed=100.0)
    dear = PoolOffer(name="dear", price=5.0, free=3, speed=100.0)
    assert chosen([dear, fast, cheap], 5, NOW, most=5) == ("cheap",) * 3 + ("fast",) * 2


def test_what_is_lost_while_it_starts_is_paid_for_too():
    """Lost every 100 s and 100 s to start: half of the time is paid for nothing."""
    calm = PoolOffer(name="calm", price=1.9, speed=1.0)
    wild = PoolOffer(name="wild", price=1.0, speed=1.0, rate=0.01, start_seconds=100.0)
    assert merit(wild, 1.0) == pytest.approx(2.0)
    assert merit(wild, 1.0) > merit(calm, 1.0) == pytest.approx(1.9)
    pulls = merit(wild, 1.0, pull=0.01, step_seconds=100.0)
    assert pulls == pytest.approx(2 * (1.0 + 3600 * 0.01 * (0.01 + 0.01)))


def test_a_pool_that_refuses_is_passed_over_and_tried_with_one_again():
    dry = PoolOffer(name="dry", price=1.0, free=5, speed=1.0, retry_at=NOW + 3, single=True)
    other = PoolOffer(name="other", price=2.0, free=5, speed=1.0)
    assert chosen([dry, other], 3, NOW, most=3) == ("other",) * 3
    assert chosen([dry, other], 3, NOW + 3, most=3) == ("dry", "other", "other")


def test_what_runs_is_not_changed_for_what_is_hardly_better():
    here = PoolOffer(name="here", price=1.0, standing=2, speed=1.0)
    barely = PoolOffer(name="there", price=1.0 - 0.5 * STICKY, free=2, speed=1.0)
    surely = PoolOffer(name="there", price=1.0 - 1.5 * STICKY, free=2, speed=1.0)
    assert mix(ranked([here, barely], NOW), 2) == {"here": 2}
    assert mix(ranked([here, surely], NOW), 2) == {"there": 2}


def test_what_is_not_wanted_goes_when_the_wanted_is_there():
    old = PoolOffer(name="old", price=2.0, standing=2, speed=1.0)
    new = PoolOffer(name="new", price=1.0, standing=2, speed=1.0)
    wanted = {"new": 2}
    assert surplus([old, new], {"old": 2}, wanted) == {}
    assert surplus([old, new], {"old": 2, "new": 1}, wanted) == {"old": 1}
    assert surplus([old, new], {"old": 2, "new": 2}, wanted) == {"old": 2}


def test_each_pool_is_tried_once_where_its_speed_is_not_known():
    known = PoolOffer(name="known", price=1.0, free=4, speed=1.0)
    new = PoolOffer(name="new", price=9.0, free=4)
    assert chosen([known, new], 1, NOW, most=4, explore=True) == ("new",)
    assert chosen([known, new], 2, NOW, most=4, explore=True) == ("new", "known")
    assert chosen([known, new], 2, NOW, most=4) == ("known", "known")
