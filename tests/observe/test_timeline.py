from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.observe.departures import ServerCounts
from rlboost_jax.observe.timeline import Course, lives


def event(time: float, kind: str, instance: str = "", **detail: Any) -> dict[str, Any]:
    return {"time": 100.0 + time, "step": 0, "kind": kind, "instance": instance, "detail": detail}


def test_a_life_from_arrival_to_end() -> None:
    (life,) = lives(
        [
            event(0, "published"),
            event(1, "joined", "a"),
            event(2, "ready", "a"),
            event(3, "ready", "a"),  # of the next version
            event(5, "lost", "a", reason="stream closed"),
            event(7, "published"),
        ]
    )
    assert (life.begin, life.ready, life.end) == (1, 2, 5)
    assert (life.ending, life.reason, life.reserved) == ("killed", "stream closed", False)


def test_who_lives_on_lives_to_the_last_event() -> None:
    (life,) = lives([event(0, "joined", "trainer", reserved=True), event(9, "published")])
    assert (life.end, life.ending, life.ready, life.reserved) == (9, "", None, True)


def test_who_works_is_ready() -> None:
    (life,) = lives([event(0, "joined", "trainer"), event(2, "working", "trainer", count=24)])
    assert life.ready == 2


def test_a_name_may_live_twice() -> None:
    kinds = ("joined", "lost", "joined", "drained")
    found = lives([event(time, kind, "a") for time, kind in enumerate(kinds)])
    assert [(life.begin, life.end, life.ending) for life in found] == [
        (0, 1, "killed"),
        (2, 3, "notice"),
    ]
    assert {life.lane for life in found} == {0}


def test_a_life_begins_with_the_order() -> None:
    """So no seconds are empty in which machines start; an order that nobody follows is no bar."""
    found = lives(
        [
            event(0, "ordered", "a"),
            event(1, "ordered", "b"),
            event(2, "ordered", "c"),
            event(15, "joined", "a", nonce="1"),
            event(16, "ready", "a"),
            event(17, "lost", "b", reason="ended before it joined"),
        ]
    )
    assert [(life.instance, life.begin, life.ready, life.end) for life in found] == [
        ("a", 0, 16, 17),
        ("b", 1, None, 17),
    ]


def test_no_ghosts_of_a_manager_that_died() -> None:
    """`a` is adopted by the next one and lives on; `b` died with the first; there is another
    `c`."""
    found = lives(
        [
            event(0, "manager"),
            event(1, "joined", "a", nonce="1"),
            event(1, "joined", "b", nonce="2"),
            event(1, "joined", "c", nonce="3"),
            event(2, "ready", "a"),
            event(3, "ready", "b"),
            event(3, "ready", "c"),
            event(5, "published"),
            event(50, "manager"),
            event(51, "joined", "a", nonce="1"),
            event(52, "joined", "c", nonce="9"),
            event(60, "published"),
        ]
    )
    assert [(life.instance, life.begin, life.end, life.ending) for life in found] == [
        ("a", 1, 60, ""),
        ("b", 1, 5, "unknown"),
        ("c", 1, 5, "unknown"),
        ("c", 52, 60, ""),
    ]


def test_another_process_of_the_same_name_is_another_life() -> None:
    """Also in files of before, in which no manager says that it starts."""
    first, second = lives(
        [
            event(0, "joined", "reserved", reserved=True, nonce="1"),
            event(4, "working", "reserved"),
            event(9, "joined", "reserved", reserved=True, nonce="2"),
            event(12, "published"),
        ]
    )
    assert (first.begin, first.end, first.ending) == (0, 4, "ended")
    assert (second.begin, second.end, second.ending) == (9, 12, "")


def test_who_is_sent_home_is_not_lost() -> None:
    (life,) = lives(
        [
            event(0, "joined", "a"),
            event(1, "ready", "a"),
            event(8, "ended", reason="the run is over"),
            event(9, "lost", "a", reason="stream closed"),
        ]
    )
    assert (life.end, life.ending) == (8, "ended")


def test_who_is_lost_is_decided_in_one_place() -> None:
    """The trainer's own engine ends with its run; so does a server that was let go, and one that
    went away after the last evaluation. One that never joined was not there to be lost."""
    events = [
        event(0, "joined", "own", reserved=True),
        event(0, "ordered", "never"),
        *(event(1, "joined", name) for name in "abcdef"),
        event(2, "lost", "never", reason="refused"),
        event(3, "lost", "a", reason="stream closed"),
        event(3, "drained", "b", reason="SIGTERM"),
        event(3, "dismissed", "c"),
        event(4, "drained", "c"),
        event(4, "rejected", "d", version=3, reason="a digest"),  # of weights: it stays
        event(4, "quarantined", "e", reason="it lies"),
        event(5, "trained"),
        event(6, "lost", "d", reason="stream closed"),
        event(7, "lost", "own", reason="stream closed"),
    ]
    over = event(8, "ended", reason="the run is over")
    ends = {life.instance: life.ending for life in lives([*events, over])}
    assert ends == {
        **{"own": "ended", "never": "absent", "a": "killed", "b": "notice", "c": "ended"},
        **{"d": "ended", "e": "turned_away", "f": "ended"},
    }
    course = Course(100.0)
    for each in events:
        course.take(each)
    assert course.tally() == ServerCounts(joined=6, lost=3, left=1), "d, so far: the run may go on"
    course.take(over)
    assert course.tally() == ServerCounts(joined=6, lost=2, left=1)


def test_an_end_without_a_beginning_is_passed_over() -> None:
    assert lives([event(0, "lost", "a"), event(1, "notice", "b")]) == ()


@st.composite
def fleets(draw: st.DrawFn) -> list[dict[str, Any]]:
    events = []
    for index in range(draw(st.integers(0, 12))):
        begin, ready, end = sorted(draw(st.tuples(*[st.integers(0, 50)] * 3)))
        events.append(event(begin, "joined", f"i{index}"))
        events.append(event(ready + 0.25, "ready", f"i{index}"))
        if draw(st.booleans()):
            events.append(event(end + 0.5, draw(st.sampled_from(["lost", "drained"])), f"i{index}"))
    return sorted(events, key=lambda one: one["time"])


@given(fleets())
def test_no_two_share_a_lane_at_once_and_none_is_wasted(events: list[dict[str, Any]]) -> None:
    found = lives(events)
    for one, other in combinations(found, 2):
        if one.lane == other.lane:
            assert one.end <= other.begin or other.end <= one.begin
    at_once = max(
        (
            sum(o.begin <= life.begin and (life.begin < o.end or not o.ending) for o in found)
            for life in found
        ),
        default=0,
    )
    assert max((life.lane for life in found), default=-1) + 1 <= at_once


@given(fleets())
def test_lives_say_how_many_instances_were_ready_at_any_time(events: list[dict[str, Any]]) -> None:
    origin, found = events[0]["time"] if events else 0.0, lives(events)
    for seconds in {moment for life in found for moment in (life.ready, life.end)} - {None}:
        so_far = [e for e in events if e["time"] - origin <= seconds]
        ready = {e["instance"] for e in so_far if e["kind"] == "ready"}
        gone = {e["instance"] for e in so_far if e["kind"] in ("lost", "drained")}
        standing = [life for life in found if not (life.ending and life.end <= seconds)]
        count = sum(x.ready is not None and x.ready <= seconds for x in standing if not x.reserved)
        assert count == len(ready - gone)
