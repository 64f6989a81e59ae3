from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.messages import Span
from rlboost_jax.observe.clocks import RemoteClock

SPAN = Span(name="n", lane="l", start=1.0, seconds=0.5, args={})

seconds = st.floats(0.0, 2.0)
ways = st.floats(0.001, 2.0)  # from one process to another
round_trips = st.tuples(seconds, ways, ways, st.booleans())


def ask(clock: RemoteClock, at: float, stamp: float, here: float) -> None:
    clock.asked(at)
    clock.answered(stamp, here)


def ahead_and_error(clock: RemoteClock) -> tuple[float, float]:
    (span,), error = clock.moved([SPAN])
    return span.start - SPAN.start, error


@given(ahead=st.floats(-1e6, 1e6), trips=st.lists(round_trips, min_size=1, max_size=20))
def test_the_truth_is_within_the_error_and_no_span_overlaps_another_whatever_either_way_takes(
    ahead: float, trips: list[tuple[float, float, float, bool]]
) -> None:
    clock, now, shortest = RemoteClock(), 0.0, 4.0
    moved: set[float] = set()
    for pause, there, back, spans_are_moved in trips:
        now += pause
        ask(clock, now, now + there + ahead, now + there + back)
        now += there + back
        shortest = min(shortest, there + back)
        if spans_are_moved:
            by, error = ahead_and_error(clock)
            assert abs(by - ahead) <= error + 1e-9
            assert error <= 2.0 + shortest + 1e-9, "it grows with what was learnt since the first"
            moved.add(by)
    assert len(moved) <= 1, "all spans by the same"


def test_the_quickest_answer_counts() -> None:
    clock = RemoteClock()
    ask(clock, 0.0, 103.0, 6.0)
    ask(clock, 6.0, 108.0, 8.0)
    ask(clock, 8.0, 111.0, 12.0)
    assert ahead_and_error(clock) == (101.0, 1.0)


def test_several_questions_may_be_under_way() -> None:
    clock = RemoteClock()
    clock.asked(0.0)
    clock.asked(1.0)
    clock.answered(103.0, 6.0)
    clock.answered(105.0, 6.0)
    assert ahead_and_error(clock) == (101.5, 2.5)  # of the second, the quicker


def test_spans_keep_their_order_when_a_better_answer_comes() -> None:
    clock = RemoteClock()
    ask(clock, 0.0, 52.0, 2.0)
    assert ahead_and_error(clock) == (51.0, 1.0)
    ask(clock, 2.0, 52.25, 2.5)
    assert ahead_and_error(clock) == (51.0, 1.25), "the clock is 50 ahead, give or take 0.25"


def test_a_clock_that_drifts_is_followed_once_it_is_out_of_reach() -> None:
    clock = RemoteClock()
    ask(clock, 0.0, 51.0, 2.0)
    assert ahead_and_error(clock) == (50.0, 1.0)
    for number in range(1, 65):
        ask(clock, number, number + 51.75, number + 1.0)
    assert ahead_and_error(clock) == (50.0, 1.75), "51.25, give or take 0.5: it may still be 50"
    for number in range(65, 129):
        ask(clock, number, number + 52.25, number + 1.0)
    assert ahead_and_error(clock) == (51.75, 0.5)


def test_another_stream_is_another_clock() -> None:
    clock = RemoteClock()
    ask(clock, 0.0, 50.5, 1.0)
    clock.asked(2.0)
    clock.restart()
    clock.answered(60.0, 2.1)  # nobody has asked on this stream
    assert ahead_and_error(clock) == (50.0, 0.5), "what was known stands, until an answer"
    ask(clock, 3.0, 7.0, 5.0)
    assert ahead_and_error(clock) == (3.0, 1.0)


def test_spans_are_moved() -> None:
    clock = RemoteClock()
    assert clock.moved([SPAN]) == ((SPAN,), 0.0), "as long as nothing is known"
    ask(clock, 0.0, 10.0, 0.0)
    (moved,), _ = clock.moved([SPAN])
    assert (moved.start, moved.seconds) == (11.0, 0.5)
