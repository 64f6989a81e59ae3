"""Servers that have neighbours: what a manager tells them, and what it pays for."""

import math

import pytest

from rlboost_jax import messages as m
from rlboost_jax.manager.reducer.bidding import LOOK_SECONDS
from tests.manager.desk import Desk
from tests.manager.fakes import settings

A, B = 10, 11
PRICE = 3.6  # dollars an hour


def desk_with(*streams: int, bids: bool = True) -> Desk:
    values = {"manager__seeding": False, "fleet__reserved_price_per_hour": 7.2}
    desk = Desk(settings(**values))
    desk.open_run()
    desk.publish(0)
    for stream in streams:
        desk.join(stream, 0, slots=4, bids=bids, price_per_hour=PRICE)
    return desk


def told(desk: Desk) -> dict[int, float]:
    return {s: bid.price for s in (A, B) for bid in desk.sent(m.Bid, s)}


def test_a_step_makes_a_bid_and_its_end_takes_it_back() -> None:
    desk = desk_with(A)
    desk.now = 1.0
    desk.begin(0, prompts=2, group_size=1)
    (price,) = told(desk).values()
    tokens = desk.manager.owners.roster.row_tokens
    assert price == pytest.approx(7.2 / (2 * tokens))
    held = desk.requests(A)
    desk.now = 2.0
    desk.tokens(A, held)
    assert told(desk) == {A: 0.0}


def test_between_two_looks_nothing_is_said_but_nothing_is_forgotten() -> None:
    desk = desk_with(A)
    desk.now = 1.0
    desk.begin(0, prompts=2, group_size=1)
    held = desk.requests(A)
    desk.now = 1.0 + LOOK_SECONDS / 2
    desk.tokens(A, held)
    assert not told(desk)
    at = desk.manager.next_deadline()
    assert at is not None and at <= 1.0 + LOOK_SECONDS
    desk.tick(1.0 + LOOK_SECONDS)
    assert told(desk) == {A: 0.0}


def test_servers_without_neighbours_are_told_nothing() -> None:
    desk = desk_with(A, bids=False)
    desk.now = 1.0
    desk.begin(0, prompts=2, group_size=1)
    assert desk.requests(A) and not told(desk)


def test_another_runs_time_is_not_paid_for() -> None:
    desk = desk_with(A, B)
    roster = desk.manager.owners.roster
    assert math.isclose(roster.index.hourly, 2 * PRICE)
    desk.server(A, m.Capacity(slots=0))
    assert math.isclose(roster.index.hourly, PRICE)
    assert roster.index.num_preemptible == 2
    desk.server(A, m.Capacity(slots=4))
    assert math.isclose(roster.index.hourly, 2 * PRICE)
    desk.server(A, m.Capacity(slots=0))
    desk.server(A, m.Goodbye(reason="SIGTERM"))
    assert math.isclose(roster.index.hourly, PRICE)


def test_work_comes_back_with_the_device() -> None:
    desk = desk_with(A)
    desk.server(A, m.Capacity(slots=0))
    desk.now = 1.0
    desk.begin(0, prompts=2, group_size=1)
    assert not desk.requests(A) and told(desk)[A] > 0
    desk.server(A, m.Capacity(slots=4))
    assert len(desk.requests(A)) == 2
