"""Leases on lines of any quality: real decisions over a simulated TCP, in virtual time."""

import math
import random
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lines.tcp import Flow, Pipe, VirtualLoop, Way
from rlboost_jax import messages as m
from rlboost_jax.manager.events import FromServer, ServerGone, Stalled
from rlboost_jax.manager.policies.connection_quality import (
    FIRST_LOSSES,
    LEAST_VARIANCE,
    MEMORY,
    ODDS,
    ConnectionQuality,
)
from rlboost_jax.rollout.renewal_timing import RenewalTiming
from rlboost_jax.sequences.shared_limits import FIRST_RENEWALS
from tests.manager.desk import RESERVED, Desk, trained
from tests.manager.fakes import hello, ready
from tests.manager.fakes import settings as manager_settings

A, B, C, D = range(10, 14)
LEASE, RENEW, LONGEST = 1.5, 0.3, 60.0
LOOK_SECONDS = 0.05  # between two looks of the manager at its clock
LINE_SETTINGS = {
    "manager__lease_seconds": LEASE,
    "manager__renew_seconds": RENEW,
    "manager__longest_lease_seconds": LONGEST,
}


class OverALine:
    """A server, a line and a manager. The server says and measures what a real one does."""

    def __init__(self, up: Way, down: Way, seed: int = 0) -> None:
        chance = random.Random(seed)
        self.clock = VirtualLoop()
        self.up, self.down = Pipe(up, chance), Pipe(down, chance)
        self.desk = Desk(manager_settings(**LINE_SETTINGS))
        self.desk.open_run(reserved=False)
        self.lost: tuple[float, str] | None = None  # when, and why
        self._to_manager = Flow(self.clock, self.up, self.down, self._manager_hears)
        self._to_server = Flow(self.clock, self.down, self.up, self._server_hears)
        self._renewals, self._stamp, self._answers = RenewalTiming(lambda: 0.0), 0.0, count()
        self._say(hello(instance="a"))
        self._look()

    @property
    def lease(self) -> float:
        return self.desk.manager.view.roster.lease(self.desk.manager.view.instances[A])

    @property
    def line(self) -> ConnectionQuality:
        return self.desk.manager.view.instances[A].lease.line

    def run(self, seconds: float) -> None:
        self.clock.pass_until(self.clock.now + seconds)

    def _say(self, message: m.ServerMessage) -> None:
        self._to_manager.offer(m.encode(message))

    def _renew(self) -> None:
        longest = self._renewals.take_longest()
        self._renewals.asked(self.clock.now)
        self._say(m.Renew(echo=self._stamp, round_trip=longest))

    def _tick(self) -> None:
        self._renew()
        self.clock.call_at(self.clock.now + RENEW, self._tick)

    def _server_hears(self, data: bytes) -> None:
        message = m.decode_to_server(data)
        assert isinstance(message, m.Welcome | m.Renewed), message
        self._stamp = message.stamp
        self._renewals.answered(self.clock.now)
        if (answers := next(self._answers)) < FIRST_RENEWALS:
            self._renew()
        elif answers == FIRST_RENEWALS:
            self._tick()

    def _manager_hears(self, data: bytes) -> None:
        self.desk(FromServer(A, m.decode_server(data)), at=self._now)
        self._perform()

    def _look(self) -> None:
        self.desk.tick(self._now)
        self._perform()
        if self.lost is None:
            self.clock.call_at(self.clock.now + LOOK_SECONDS, self._look)

    def _perform(self) -> None:
        if reason := self.desk.closed().get(A):
            self.lost = self.lost or (self.clock.now, reason)
        for message in [*self.desk.sent(m.Welcome, A), *self.desk.sent(m.Renewed, A)]:
            self._to_server.offer(m.encode(message))

    @property
    def _now(self) -> float:
        return 100.0 + self.clock.now  # a stamp of 0 would be none


GOOD = Way(delay=0.002)
BAD = Way(delay=0.15, loss=0.1)  # 300 ms and 10 %


@pytest.mark.parametrize("round_trip", [0.0005, 0.005, 0.02])
def test_a_good_line_is_known_at_once(round_trip: float) -> None:
    way = Way(delay=round_trip / 2)
    fleet = OverALine(way, way)
    fleet.run((FIRST_RENEWALS + 4) * round_trip)
    assert fleet.lease < 1.7
    fleet.run(30.0)
    assert fleet.lease == LEASE and fleet.lost is None


@settings(max_examples=25, deadline=None)
@given(
    delay=st.floats(0.0002, 0.03), jitter=st.floats(0.0, 0.01), alive=st.floats(20.0, 40.0),
    direction=st.sampled_from(["up", "down", "both"]), seed=st.integers(0, 2**16),
)  # fmt: skip
def test_on_good_lines_a_dead_server_is_known_within_two_seconds(
    delay: float, jitter: float, alive: float, direction: str, seed: int
) -> None:
    """Up to 60 ms there and back, without losses."""
    fleet = OverALine(Way(delay=delay, jitter=jitter), Way(delay=delay), seed)
    fleet.run(alive)
    assert fleet.lost is None
    fleet.up.cut, fleet.down.cut = direction != "down", direction != "up"
    fleet.run(2.0)
    assert fleet.lost is not None


way = st.builds(
    Way, delay=st.floats(0.001, 0.3), jitter=st.floats(0.0, 0.1), loss=st.floats(0.0, 0.04),
    reordering=st.floats(0.0, 0.1), bytes_per_second=st.sampled_from([16_000.0, 125_000.0, 1e9]),
)  # fmt: skip


@settings(max_examples=25, deadline=None)
@given(up=way, down=way, seconds=st.floats(20.0, 120.0), seed=st.integers(0, 2**16))
def test_on_any_line_the_honest_stay_and_the_dead_are_known_within_the_bound(
    up: Way, down: Way, seconds: float, seed: int
) -> None:
    fleet = OverALine(up, down, seed)
    fleet.run(seconds)
    assert fleet.lost is None
    fleet.up.cut = fleet.down.cut = True
    fleet.run(LONGEST + 1.0)
    assert fleet.lost is not None


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_lost_in_ten_minutes_of_300_ms_and_10_percent(seed: int) -> None:
    fleet = OverALine(BAD, BAD, seed)
    fleet.run(600.0)
    assert fleet.lost is None
    assert 20.0 < fleet.lease <= LONGEST and 0.05 < fleet.line.losses < 0.2


def test_who_does_not_hear_on_a_bad_line_is_known_too() -> None:
    fleet = OverALine(BAD, BAD)
    fleet.run(60.0)
    fleet.down.cut = True
    fleet.run(LONGEST + 1.0)
    assert fleet.lost is not None


# The estimate alone: its answers by hand


def known(trips: int, round_trip: float, late: int = 0) -> ConnectionQuality:
    """A line on which so many round trips took long, and were not late one after another."""
    line = ConnectionQuality()
    for number in range(trips):
        line.took(round_trip + (1.0 if number % 8 == 4 and number // 8 < late else 0.0))
    return line


def test_the_first_round_trip_is_the_way_however_long() -> None:
    """RFC 6298, 2.2: half of it is the deviation, so the time-out is three of it. Nothing was known
    that it could be late by: it says nothing of losses."""
    line, quick = ConnectionQuality(), ConnectionQuality()
    line.took(2.0)
    quick.took(0.001)
    assert (line.round_trip, line.deviation, line.timeout) == (2.0, 1.0, 6.0)
    assert line.losses == quick.losses


def test_a_line_is_known_once_the_first_renewals_were_answered() -> None:
    """Which come one upon the other; earlier ones are forgotten a little by then."""
    line = ConnectionQuality()
    known = []
    for _ in range(2 * FIRST_RENEWALS):
        line.took(0.01)
        known.append(line.known)
    assert FIRST_RENEWALS <= known.index(True) + 1 <= FIRST_RENEWALS + 1 and all(
        known[known.index(True) :]
    )


def test_the_pause_is_that_of_as_many_losses_in_a_row_as_the_odds_allow() -> None:
    line = known(3000, 0.3)
    assert line.round_trip == pytest.approx(0.3) and line.deviation == pytest.approx(0.0, abs=1e-9)
    losses = FIRST_LOSSES / (1 + MEMORY) / 2
    assert line.losses == pytest.approx(losses, rel=1e-2)
    timeout, pause, odds = 0.3 + LEAST_VARIANCE, 0.0, 1.0
    while odds > ODDS:  # one loss more at a time, each time-out twice as long as the one before
        odds, pause, timeout = odds * losses, pause + timeout, 2 * timeout
    assert pause / 2.2 < line.pause <= pause  # in between, the number of losses is no whole one


def test_a_lease_outlives_two_renewals_the_way_and_the_pause() -> None:
    line = known(3000, 0.3)
    assert line.lease(0.0, math.inf, RENEW) == pytest.approx(2 * RENEW + 0.3 + line.pause)


def test_several_late_ones_in_a_row_are_one_loss() -> None:
    once, run = known(100, 0.01), known(100, 0.01)
    once.took(2.0)
    for seconds in (2.0, 1.7, 1.4, 1.1):
        run.took(seconds)
    assert run.losses == pytest.approx(once.losses, rel=0.05)


def test_a_line_that_gets_better_is_believed_in_minutes() -> None:
    line = known(256, 0.3, late=32)
    assert line.lease(LEASE, LONGEST, RENEW) > 10.0
    for _ in range(round(5 * 60 / RENEW)):
        line.took(0.01)
    assert line.lease(LEASE, LONGEST, RENEW) < 1.6


def test_a_way_that_has_become_longer_is_learnt() -> None:
    line = known(256, 0.01)
    for _ in range(400):
        line.took(0.8)
    assert line.round_trip == pytest.approx(0.8, rel=0.01)
    assert line.losses < 0.005, "it is longer, not worse"


@given(st.lists(st.floats(0.0, 1e9), max_size=100))
def test_whatever_a_server_says_its_lease_is_within_bounds(trips: list[float]) -> None:
    line = ConnectionQuality()
    for seconds in trips:
        line.took(seconds)
        lease = line.lease(LEASE, LONGEST, RENEW)
        assert LEASE <= lease <= LONGEST and math.isfinite(line.pause) and 0 < line.losses < 1


def test_as_long_as_the_shortest_lease_is_the_longest_all_have_it() -> None:
    assert known(64, 0.3, late=8).lease(LEASE, LEASE, RENEW) == LEASE


# What the manager does with it


def joined(**changes: float) -> Desk:
    """At second 10."""
    desk = Desk(manager_settings(**LINE_SETTINGS, **changes))
    desk.open_run(reserved=False)
    desk.now = 10.0
    desk.join(A)
    return desk


def renewed(desk: Desk, at: float, round_trip: float) -> m.Renewed:
    desk.now = at
    desk.server(A, m.Renew(echo=desk.now - 0.1, round_trip=round_trip))
    (answer,) = desk.sent(m.Renewed, A)
    return answer


def test_one_that_is_merely_silent_has_its_whole_lease() -> None:
    """An answer was on its way to it when it was heard last, which is nothing to go by."""
    desk = joined()
    for number in range(1, 65):
        renewed(desk, 10.0 + number / 100, 0.01)
    last = desk.now + RENEW
    desk.now = last
    desk.server(A, m.Renew(echo=last - 0.4, round_trip=0.01))
    desk.tick(last + LEASE - 0.05)
    assert not desk.closed()
    desk.tick(last + LEASE + 0.01)
    assert desk.closed() == {A: f"silent for {LEASE:g} s"}


def test_a_stall_of_the_manager_is_no_fault_of_the_line() -> None:
    desk = joined()
    for number in range(1, 101):
        answer = renewed(desk, 10.0 + number / 100, 0.01)
    assert answer.lease_seconds == LEASE
    desk(Stalled(5.0), at=16.0)
    assert renewed(desk, 16.01, 5.0).lease_seconds == LEASE
    late = renewed(desk, 16.01 + RENEW, 0.25)  # answered at 16.01; said with its next renewal
    assert late.lease_seconds == LEASE
    for number in range(1, 4):
        answer = renewed(desk, 16.01 + number, 0.9)
        answer = renewed(desk, 16.11 + number, 0.01)
    assert answer.lease_seconds > LEASE


def test_what_lay_here_before_a_server_was_let_in_is_no_fault_of_its_line() -> None:
    """Its hello and its first renewal came while we stood still for 4 s."""
    desk = joined()
    assert renewed(desk, 10.05, 4.0).lease_seconds > 30.0, "nothing is known yet"
    for number in range(2, 2 + 2 * FIRST_RENEWALS):
        answer = renewed(desk, 10.0 + number / 20, 0.01)
    line = desk.manager.view.instances[A].lease.line
    assert line.deviation < 0.001 and answer.lease_seconds < 1.7


def test_a_trainers_own_engine_is_not_lost_on_a_busy_host() -> None:
    """Its stream says when it ends; a device of it that hangs is known as soon as any other's."""
    desk = Desk(manager_settings(**LINE_SETTINGS, manager__progress_seconds=3.0))
    desk.open_run()
    desk.publish(0)
    desk.server(RESERVED, ready(0))
    desk.begin(0, prompts=1)
    for number in range(2 * FIRST_RENEWALS):
        desk.now = 1.0 + number / 100
        desk.server(RESERVED, m.Renew(echo=desk.now, round_trip=0.001))
        assert not desk.records("line")
    roster, instance = desk.manager.view.roster, desk.manager.view.instances[RESERVED]
    assert roster.lease(instance) == LONGEST
    assert roster.deadline(instance).at <= desk.now + 3.0 and instance.held
    desk(ServerGone(RESERVED, "killed"), at=2.0)
    assert RESERVED not in desk.manager.view.instances


def test_a_line_that_is_another_than_it_was_is_an_event_and_in_the_status() -> None:
    desk = joined()
    seen = []
    for number in range(300):
        renewed(desk, 10.1 + RENEW * number, 0.3 + (number % 8 == 4) * 1.5)
        seen += desk.records("line")
    assert 1 <= len(seen) <= 5 and seen[-1].detail["lease_seconds"] > 3.0
    assert seen[-1].detail["round_trip"] == pytest.approx(0.3, abs=0.01)
    (status,) = [
        one for one in desk.manager.status(desk.now).instances if one.instance == "server-10"
    ]
    assert status.lease_seconds == desk.manager.view.roster.lease(desk.manager.view.instances[A])
    assert (status.round_trip, status.losses) == (
        pytest.approx(0.3, abs=0.01),
        pytest.approx(1 / 7 / 2, rel=0.1),
    )


def test_a_report_has_the_median_and_the_worst_line_and_a_step_names_the_worst() -> None:
    """The trainer's own engine is behind none, and one that has just come is not known."""
    desk = Desk(manager_settings(**LINE_SETTINGS))
    desk.open_run()
    desk.publish(0)
    desk.begin(0, prompts=1)
    trips = {A: 0.01, B: 0.2, C: 0.4, RESERVED: 5.0}
    for stream in (A, B, C, D):
        desk.join(stream, version=0)
    for number in range(2 * FIRST_RENEWALS):
        desk.now = 10.0 + number / 100
        for stream, seconds in trips.items():
            late = 1.0 * (stream == C and number % 8 == 4)
            desk.server(stream, m.Renew(echo=desk.now, round_trip=seconds + late))
    desk.server(D, m.Renew(echo=desk.now, round_trip=9.0))
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    lines = {s: desk.manager.view.instances[s].lease.line for s in (A, B, C)}
    assert report.line_round_trip_median == pytest.approx(0.2)
    assert report.line_round_trip_worst == pytest.approx(0.4, rel=0.01)
    assert report.line_losses_median == lines[B].losses
    assert report.line_losses_worst == lines[C].losses > 0.03
    roster = desk.manager.view.roster
    leases = {s: roster.lease(desk.manager.view.instances[s]) for s in (A, B, C)}
    assert report.lease_seconds_median == leases[B] < report.lease_seconds_worst == leases[C]
    (event,) = desk.records("lines")
    assert event.detail["known"] == 3
    assert [one["instance"] for one in event.detail["worst"]] == [
        "server-12", "server-11", "server-10",
    ]  # fmt: skip
    assert event.detail["worst"][0]["lease_seconds"] == pytest.approx(leases[C], abs=1e-3)


def test_where_no_line_is_known_a_report_has_none() -> None:
    desk = Desk(manager_settings(**LINE_SETTINGS))
    desk.open_run()
    desk.publish(0)
    desk.begin(0, prompts=1)
    desk.now = 1.0
    desk.trainer(trained(0))
    (report,) = desk.sent(m.BatchReport)
    assert report.line_round_trip_worst is report.lease_seconds_median is None
    assert desk.records("lines") == []


def test_work_over_a_bad_line_may_be_as_late_as_the_line() -> None:
    """Tokens come over it, too: three seconds, and what its lease has beyond the least."""
    desk = joined(manager__progress_seconds=3.0, deterministic=False, manager__seeding=False)
    desk.publish(0)
    desk.server(A, ready(0))
    roster, instance = desk.manager.view.roster, desk.manager.view.instances[A]
    for number in range(64):
        renewed(desk, 10.1 + RENEW * number, 0.3 + (number % 8 == 4) * 1.5)
    slack = roster.lease(instance) - LEASE
    assert slack > 3.0
    desk.begin(0, prompts=1)
    assert instance.held, "it is at work"
    assert roster.deadline(instance).at == desk.now + LEASE + slack
