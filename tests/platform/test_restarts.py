"""What follows the end of a process: another start after a pause, or a line."""

import signal

import pytest

from rlboost_jax.platform import exits
from rlboost_jax.platform.restarts import Again, Cause, End, Restarts, Stop, after_end

FEW = Restarts(
    most_starts=5, settled_seconds=10.0, first_pause_seconds=1.0, longest_pause_seconds=3.0
)
KILLED = End(cause=Cause.OUTSIDE, how="was ended by SIGKILL")


def decisions(*ends: End, restarts: Restarts = FEW) -> list[float | str]:
    """The pause after each of these ends, one after the other, or the line of the last."""
    found: list[float | str] = []
    failed = 0
    for end in ends:
        match after_end("the manager", failed, end, restarts):
            case Again(failed=failed, seconds=seconds):
                found.append(seconds)
            case Stop(line=line):
                return [*found, line]
    return found


def test_pauses_double_and_a_line_says_how_often_it_was_started_and_how_it_ended_last() -> None:
    crashed = End(cause=Cause.OUTSIDE, how="ended with code 1")
    line = "the manager was started 5 times in a row in vain; the last ended with code 1"
    assert decisions(*[KILLED] * 4, crashed) == [1.0, 2.0, 3.0, 3.0, line]
    assert decisions(KILLED, restarts=Restarts(most_starts=1)) == [
        "the manager was started once in vain; the last was ended by SIGKILL"
    ]


def test_one_that_has_served_for_a_while_makes_counting_begin_anew() -> None:
    short = End(cause=Cause.OUTSIDE, how="was ended by SIGKILL", served_seconds=9.9)
    long = End(cause=Cause.OUTSIDE, how="was ended by SIGKILL", served_seconds=10.0)
    assert decisions(KILLED, short, KILLED, long, KILLED) == [1.0, 2.0, 3.0, 1.0, 2.0]


def test_a_mistake_is_not_made_again_and_speaks_for_itself() -> None:
    mistake = End(cause=Cause.MISTAKE, how="port 80 is in use", served_seconds=99.0)
    assert decisions(mistake) == ["port 80 is in use"]
    assert decisions(KILLED, mistake) == [1.0, "port 80 is in use"]


def test_what_a_run_can_do_without_is_started_for_ever() -> None:
    endless = Restarts(most_starts=None, longest_pause_seconds=0.5)
    assert decisions(*[KILLED] * 1000, restarts=endless)[-1] == 0.5


@pytest.mark.parametrize(
    ("returncode", "sent"),
    [
        (-signal.SIGKILL, True),
        (-signal.SIGTERM, True),
        (-signal.SIGHUP, True),
        (exits.by_signal(signal.SIGTERM), True),  # it heard of it, and said so
        (-signal.SIGSEGV, False),
        (-signal.SIGABRT, False),
        (0, False),
        (1, False),
        (9, False),
    ],
)
def test_signals_that_others_send_are_no_crashes(returncode: int, sent: bool) -> None:
    assert exits.is_sent(exits.of_process(returncode)) == sent
