from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.messages import Span
from rlboost_jax.observe.clocks import Clock

seconds = st.floats(0.0, 2.0)


@given(
    ahead=st.floats(-1e6, 1e6),
    trips=st.lists(st.tuples(seconds, seconds, seconds), min_size=1, max_size=20),
)
def test_the_truth_is_within_the_error_whatever_either_way_takes(
    ahead: float, trips: list[tuple[float, float, float]]
) -> None:
    clock, now = Clock(), 0.0
    for pause, there, back in trips:
        now += pause
        clock.asked(now)
        stamp = now + there + ahead
        now += there + back
        clock.answered(stamp, now)
    assert abs(clock.ahead - ahead) <= clock.error + 1e-9
    assert clock.error <= min((there + back) / 2 for _, there, back in trips) + 1e-9


def test_several_questions_may_be_under_way() -> None:
    clock = Clock()
    clock.asked(0.0)
    clock.asked(1.0)
    clock.answered(103.0, 6.0)
    clock.answered(105.0, 6.0)
    assert (clock.ahead, clock.error) == (101.5, 2.5)  # of the second, the quicker


def test_another_stream_is_another_clock() -> None:
    clock = Clock()
    clock.asked(0.0)
    clock.answered(50.5, 1.0)
    clock.asked(2.0)
    clock.restart()
    clock.answered(60.0, 2.1)  # nobody has asked on this stream
    assert (clock.ahead, clock.error) == (50.0, 0.5), "what was known stands, until an answer"
    clock.asked(3.0)
    clock.answered(7.0, 5.0)
    assert (clock.ahead, clock.error) == (3.0, 1.0)


def test_spans_are_moved() -> None:
    clock = Clock()
    span = Span(name="n", lane="l", start=1.0, seconds=0.5, args={})
    assert list(clock.moved([span])) == [span], "as long as nothing is known"
    clock.asked(0.0)
    clock.answered(10.0, 0.0)
    (moved,) = clock.moved([span])
    assert (moved.start, moved.seconds) == (11.0, 0.5)
