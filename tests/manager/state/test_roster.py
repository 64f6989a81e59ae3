"""What the roster counts and remembers of its servers, against what is reckoned by hand."""

import math

import numpy as np
import pytest

from rlboost_jax.manager.events import ServerGone
from rlboost_jax.manager.state.roster import MAX_BANISHED, MAX_PRICE, RECEIVES_NOTHING, Roster
from tests.manager.desk import RESERVED, at_work, seeded, trained
from tests.manager.fakes import hello, length, settings

A, B = 10, 11


def test_what_a_rollout_holds_is_the_mean_over_all_steps_that_sample_one() -> None:
    """Prompt and what is there already, half a token of its own step included."""
    desk = seeded()
    roster = desk.manager.view.roster
    batch = desk.manager.view.batch
    assert batch is not None
    rollouts = [(r.sample, len(r.transcript.prompt) // 4) for r in batch.rollouts]
    while not batch.finished:
        desk.tokens(RESERVED, desk.requests(RESERVED))
    desk.trainer(trained(0))
    held = [
        prompt + step + 0.5 for sample, prompt in rollouts for step in range(length("d", 0, sample))
    ]
    assert roster.row_tokens == pytest.approx(float(np.mean(held)))


def test_rooms_follow_from_what_rollouts_hold() -> None:
    """A cache of 40 tokens has room for as many. This one has no work itself."""
    desk = seeded()
    requests = desk.requests(RESERVED)
    desk.join(A, slots=8, cache_tokens=40)
    before = desk.manager.view.instances[A].room
    while requests:
        desk.tokens(RESERVED, requests)
        requests = desk.requests(RESERVED)
    desk.trainer(trained(0))
    roster = desk.manager.view.roster
    assert before == int(40 // (settings().slot_tokens / 2))
    assert desk.manager.view.instances[A].room == min(8, int(40 // roster.row_tokens)) != before


def test_losses_are_counted_and_which_of_them_the_market_took() -> None:
    desk = seeded()
    roster = desk.manager.view.roster
    for stream in (A, B):
        desk.join(stream, 0, nonce=str(stream))
    desk(ServerGone(A, "connection reset"), at=1.0)
    assert (roster.lost, roster.losses) == (1, 1)
    desk.manager.components.servers.quarantine("server-11", "it lies", 1.0)
    assert (roster.lost, roster.losses) == (1, 1), "the run itself sends it away"
    desk(ServerGone(RESERVED, "it ends"), at=2.0)
    assert (roster.lost, roster.losses) == (1, 1), "the trainer's own is none of the fleet"
    assert roster.joined == 2


def test_servers_are_paid_and_counted_for_as_long_as_they_are_here() -> None:
    desk = seeded()
    roster = desk.manager.view.roster
    desk.publish(0)
    desk.now = 1.0
    desk.join(A, 0)
    desk(ServerGone(A, "gone"), at=4.0)
    desk.tick(10.0)
    assert roster.alive.total(10.0) == pytest.approx(3.0)
    assert roster.ready.total(10.0) == pytest.approx(3.0)


def test_the_time_of_a_start_is_smoothed() -> None:
    roster = Roster(settings(), 0.0)
    assert roster.start_seconds == math.inf
    for seconds, known in ((10.0, 10.0), (20.0, 13.0), (13.0, 13.0), (3.0, 10.0)):
        roster.started(seconds)
        assert roster.start_seconds == pytest.approx(known)


def test_who_was_sent_away_is_remembered_for_as_long_as_many_others() -> None:
    roster = Roster(settings(max_servers=10_000), 0.0)
    liars = [hello(instance=f"liar-{number}") for number in range(MAX_BANISHED + 1)]
    for stream, liar in enumerate(liars):
        roster.banish(roster.join(stream, liar, 0.0).name, "it lied")
        assert "it lied" in roster.objection(liar)
    assert not roster.objection(liars[0])
    assert all("it lied" in roster.objection(liar) for liar in liars[1:])
    assert len(roster.banished) == MAX_BANISHED


@pytest.mark.parametrize(
    ("price", "right"),
    [(0.0, True), (MAX_PRICE, True), (math.nextafter(MAX_PRICE, math.inf), False), (-0.01, False)],
)
def test_a_price_has_bounds(price: float, right: bool) -> None:
    said = Roster(settings(), 0.0).objection(hello(price_per_hour=price))
    assert (said == "") == right, said


@pytest.mark.parametrize(("round_trip", "way"), [(0.0, 0.0), (0.2, 0.2 + 4 * 0.1)])
def test_one_that_hears_nothing_has_a_lease_a_renewal_and_its_way(
    round_trip: float, way: float
) -> None:
    """Time counts from the newest answer that it echoed.

    It counts as such once it has missed an answer: half a renewal, and its way, beyond the one that
    was due.
    """
    roster = Roster(settings(), 0.0)  # leases of 2 s, renewed every 0.5 s
    instance = roster.join(A, hello(), 0.0)
    if round_trip:
        instance.lease.line.took(round_trip)
    for age, hears_nothing in ((0.75 + way, False), (0.76 + way, True)):
        stamp = 100.0 * age
        instance.lease.echoed(stamp, stamp + age)
        instance.lease.heard(stamp + 10.0)
        due, reason, stuck = roster.deadline(instance)
        assert (RECEIVES_NOTHING in reason) == hears_nothing and not stuck
        assert due == pytest.approx(stamp + (2.0 + 0.5 + way if hears_nothing else 12.0))


def test_a_step_knows_whether_its_fleet_has_changed() -> None:
    desk = seeded()
    roster = desk.manager.view.roster
    desk.join(A, 0)
    desk.join(B)  # has not loaded anything yet
    for leaves, changes in ((B, False), (A, True)):
        roster.begin_batch()
        desk(ServerGone(leaves, "gone"), at=1.0)
        assert roster.changed == changes


def test_tokens_under_way_are_over_with_their_server() -> None:
    desk, requests = at_work(A)
    desk.tokens(A, requests, 1, in_flight=8)
    assert desk.manager.view.roster.under_way() == (0, 8)
    desk(ServerGone(A, "gone"), at=1.0)
    assert desk.manager.view.roster.under_way() == (0, 0)


def test_each_reserved_engine_has_its_share_of_the_price() -> None:
    """They cost 2 $/s together; a server what it says."""
    desk = seeded()
    desk.join(A, price_per_hour=36.0)

    def prices() -> dict[bool, list[float]]:
        found: dict[bool, list[float]] = {True: [], False: []}
        for one in desk.manager.status(0.0).instances:
            found[one.reserved].append(one.price_per_hour)
        return found

    assert prices() == {True: [7200.0], False: [36.0]}
    desk.server(RESERVED + 1, hello(instance="trainer-2", reserved=True))
    assert prices() == {True: [3600.0, 3600.0], False: [36.0]}
