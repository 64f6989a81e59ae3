"""What a step is said to wait for."""

import threading
from types import SimpleNamespace

import pytest

from rlboost_jax.learner.wait_lines import (
    EVERY_SECONDS,
    PATIENCE_SECONDS,
    QUIET_SECONDS,
    LearnerWork,
    WaitLines,
    shown,
)
from tests import patience


def collector(**fields):
    return SimpleNamespace(
        **{"num_taken": 8, "num_expected": 8, "unjudged": (), "unscored": ()} | fields
    )


def said_in_a_minute(lines, until=62):
    return {now: line for now in range(1, until) if (line := lines.look(float(now)))}


def test_a_slow_reward_is_named_and_not_too_often() -> None:
    said = said_in_a_minute(WaitLines("step 2", collector(unjudged=(3, 5)), work=LearnerWork()))
    first = 1 + int(PATIENCE_SECONDS)
    assert sorted(said) == [first, first + int(EVERY_SECONDS)]
    assert said[first].startswith("  step 2: 2 of 8 responses that have come wait for their reward")
    assert "for 10 s" in said[first] and "for 40 s" in said[first + int(EVERY_SECONDS)]


@pytest.mark.parametrize(
    ("state", "computing", "unpublished", "expected"),
    [
        # Rewards that are missing hold nothing up while the learner computes.
        (
            {"unjudged": (3,)},
            "micro-batch 1 of 2",
            4,
            "computing micro-batch 1 of 2 for 10 s; 8 of",
        ),
        ({"unscored": (3,)}, "", None, "1 of 8 responses that have come wait for a teacher's"),
        ({"unjudged": (3,)}, "", 4, "1 of 8 responses that have come wait for their reward"),
        (
            {"num_taken": 0},
            "",
            4,
            "version 4 has been in writing for 10 s, and servers wait for it",
        ),
        ({"num_taken": 5}, "", None, "no response has come for 60 s; 5 of 8 are here"),
        ({}, "", 4, ""),  # all is here, and the next thing is done at once
    ],
)
def test_the_cause_follows_from_the_state(state, computing, unpublished, expected) -> None:
    work = LearnerWork()
    lines = WaitLines("step 1", collector(**state), work=work, unpublished=lambda: unpublished)
    watch = work.named(lambda: computing, lambda: said_in_a_minute(lines))
    said = watch()
    assert work.name == ""
    if not expected:
        assert not said
        return
    assert min(said) == 1 + int(QUIET_SECONDS if "come for" in expected else PATIENCE_SECONDS)
    assert expected in said[min(said)]


def test_what_comes_is_no_news() -> None:
    """Some rewards are missing all the time, but none of them for long; then responses come."""
    step = collector(num_taken=100, num_expected=200)
    lines = WaitLines("step 0", step, work=LearnerWork())
    for now in range(100):
        step.unjudged = (now // 5, now // 5 + 1)
        assert lines.look(float(now)) == ""
    step.unjudged = ()
    for now in range(100, 200):
        step.num_taken += now % 50 == 0
        assert lines.look(float(now)) == ""


def test_lines_are_said_while_the_block_runs() -> None:
    said, heard = [], threading.Event()

    def note(line: str) -> None:
        said.append(line)
        heard.set()

    lines = WaitLines("step 1", collector(), work=LearnerWork())
    lines.look = lambda now: f"at {now:g}"  # type: ignore[method-assign]
    with shown(lines, note):
        assert heard.wait(patience.PATIENCE_SECONDS)
    assert said[0] == "at 1"
