from itertools import combinations
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.observe.timeline import lives, ready_counts


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
    assert (life.ending, life.reason, life.reserved) == ("lost", "stream closed", False)


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
        (0, 1, "lost"),
        (2, 3, "drained"),
    ]
    assert {life.lane for life in found} == {0}


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
def test_ready_counts_by_hand(events: list[dict[str, Any]]) -> None:
    origin = events[0]["time"] if events else 0.0
    for seconds, count in ready_counts(lives(events)):
        so_far = [e for e in events if e["time"] - origin <= seconds]
        ready = {e["instance"] for e in so_far if e["kind"] == "ready"}
        gone = {e["instance"] for e in so_far if e["kind"] in ("lost", "drained")}
        assert count == len(ready - gone)
