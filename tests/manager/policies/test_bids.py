"""What a run bids for devices that other runs' servers are on, too: by hand."""

import pytest

from rlboost_jax.manager.policies.bids import SPARE, Bidder, bids

ROOM = 8


def bidder(held: int = 0, *, has: bool = True, ready: bool = True) -> Bidder:
    return Bidder(room=ROOM, held=held, has_device=has, ready=ready)


def prices(*bidders: Bidder, left: int, row_tokens: float = 10.0) -> list[float]:
    """In units of the price of the work left, whose hour is worth 2."""
    price = 2.0 / (left * row_tokens) if left else 1.0
    found = bids(bidders, left=left, row_tokens=row_tokens, worth=2.0)
    return [round(each / price, 6) for each in found]


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
