"""Who has a device that several runs bid for: over any comings, bids and goings."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.rollout.sharing.auction import (
    MARGIN,
    Auction,
    bid,
    bills,
    entered,
    has,
    left,
    let_go,
)

numbers = st.integers(0, 2)
prices = st.sampled_from([0.0, 0.001, 1.0, 1.5, 2.5, 10.0])
events = st.one_of(
    st.tuples(st.just("enter"), numbers),
    st.tuples(st.just("bid"), numbers, prices),
    st.tuples(st.just("let go"), numbers),
    st.tuples(st.just("leave"), numbers),
)
happenings = st.lists(st.tuples(events, st.floats(0, 10)), max_size=40)


def after(auction, event, now):
    """What an edge does: those alone bid that are there, and each enters once."""
    kind, who = event[0], event[1]
    there = who in auction.bids
    if kind == "enter" and not there:
        return entered(auction, who, now)
    if kind == "bid" and there:
        return bid(auction, who, event[2], now)
    if kind == "let go" and there:
        return let_go(auction, who, now)
    if kind == "leave" and there:
        return left(auction, who, now)
    return auction


@given(happenings)
def test_one_has_it_and_nobody_else_until_it_has_let_go(happened) -> None:
    auction, now = Auction(), 0.0
    for event, seconds in happened:
        before, now = auction, now + seconds
        auction = after(auction, event, now)
        there = auction.bids.keys()
        assert (auction.holder is None) == (not there)
        assert auction.holder in there or not there
        assert sum(has(auction, who) for who in there) <= 1
        if before.holder is not None and auction.holder != before.holder:
            assert event in (("let go", before.holder), ("leave", before.holder))
        if auction.holder is not None and auction.winner is None:
            held = auction.bids[auction.holder]
            assert max(auction.bids.values()) <= MARGIN * held or not any(auction.bids.values())


@given(happenings)
def test_bills_add_up_to_the_time_in_which_somebody_was_there(happened) -> None:
    auction, now, whole = Auction(), 0.0, 0.0
    for event, seconds in happened:
        whole += seconds if auction.bids else 0.0
        auction, now = after(auction, event, now + seconds), now + seconds
    assert math.isclose(sum(bills(auction, now).values()), whole, abs_tol=1e-9)


def two(first: float, second: float) -> Auction:
    """Neighbour 0 came first; then both bid."""
    auction = entered(entered(Auction(), 0, 0.0), 1, 0.0)
    return bid(bid(auction, 0, first, 0.0), 1, second, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "outbid"),
    [(0.0, 0.0, False), (0.0, 1e-9, True), (1.0, 2.0, False), (1.0, 2.1, True), (1.0, 0.0, False)],
)
def test_the_holder_stays_unless_another_bids_much_more(first, second, outbid) -> None:
    auction = two(first, second)
    assert has(auction, 0) != outbid and not has(auction, 1)
    assert has(let_go(auction, 0, 1.0), 1) == outbid


def test_the_device_goes_to_the_best_of_the_moment_in_which_it_is_let_go() -> None:
    auction = two(1.0, 3.0)
    assert auction.winner == 1
    assert let_go(bid(auction, 1, 0.0, 1.0), 0, 1.0).holder == 0
    assert let_go(bid(auction, 0, 9.0, 1.0), 0, 1.0).holder == 0


def test_a_winner_that_leaves_has_won_nothing() -> None:
    assert has(left(two(1.0, 3.0), 1, 1.0), 0)
