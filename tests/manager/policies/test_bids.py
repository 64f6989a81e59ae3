"""What a run bids for devices that other runs' servers are on, too: by hand."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.manager.policies.bids import SPARE, Bidder, bids
from rlboost_jax.rollout.sharing.auction import Auction, bid, entered, has

ROOM = 8


def bidder(held: int = 0, *, has: bool = True, ready: bool = True) -> Bidder:
    return Bidder(room=ROOM, held=held, has_device=has, ready=ready)


def prices(*bidders: Bidder, left: int, row_tokens: float = 10.0) -> list[float]:
    """Bids in units of the price of the work left, whose hour is worth 2; SPARE as it is."""
    price = 2.0 / (left * row_tokens) if left else 1.0
    found = bids(bidders, left=left, row_tokens=row_tokens, worth=2.0)
    return [each if each == SPARE else round(each / price, 6) for each in found]


def test_a_run_without_work_bids_nothing() -> None:
    assert prices(bidder(), bidder(2), left=0) == [0.0, 0.0]


def test_less_work_left_makes_a_higher_bid() -> None:
    few, many = (
        bids([bidder()], left=left, row_tokens=10.0, worth=2.0)[0] for left in (ROOM, 4 * ROOM)
    )
    assert few == pytest.approx(4 * many)


def test_as_many_devices_are_needed_as_the_work_fills_the_fullest_first() -> None:
    there = bidder(1), bidder(4), bidder(2)
    assert prices(*there, left=ROOM) == [SPARE, 1.0, SPARE]
    assert prices(*there, left=ROOM + 1) == [SPARE, 1.0, 1.0]
    assert prices(*there, left=3 * ROOM) == [1.0, 1.0, 1.0]


def test_all_are_bid_for_until_there_are_enough() -> None:
    without = bidder(has=False), bidder(has=False), bidder(has=False)
    assert prices(*without, left=ROOM) == [1.0, 1.0, 1.0]
    assert prices(bidder(has=False), bidder(), bidder(has=False), left=ROOM) == [SPARE, 1.0, SPARE]


def test_a_server_with_other_parameters_bids_nothing() -> None:
    assert prices(bidder(ready=False), bidder(), left=1) == [0.0, 1.0]


work = st.tuples(st.integers(1, 10**6), st.floats(1.0, 1e5), st.floats(0.01, 1e4))


def bid_of(run: tuple[int, float, float], *there: Bidder) -> float:
    """Bid of a run for the last of its servers.

    Args:
        run: responses left, tokens of one, and what an hour is worth.
    """
    left, row_tokens, worth = run
    return bids(there, left=left, row_tokens=row_tokens, worth=worth)[-1]


@given(one=work, other=work, held=st.integers(0, ROOM))
def test_a_device_that_no_run_needs_stays_where_it_is(one, other, held) -> None:
    """Whatever the runs are worth and have left: rollouts there are handed back for a use only."""
    enough = Bidder(room=10**6, held=ROOM, has_device=True, ready=True)
    holder, neighbour = bidder(held), bidder(has=False)
    auction = entered(entered(Auction(), 0, 0.0), 1, 0.0)
    auction = bid(auction, 0, bid_of(one, enough, holder), 0.0)
    auction = bid(auction, 1, bid_of(other, enough, neighbour), 0.0)
    assert has(auction, 0)
    assert not has(bid(auction, 1, bid_of(other, neighbour), 0.0), 0), "it has a use for it now"
    assert not has(bid(auction, 0, 0.0, 0.0), 0), "its holder has nothing to do"
