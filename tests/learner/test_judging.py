"""What is said while rewards are waited for."""

import threading
from types import SimpleNamespace

from rlboost_jax.learner.episodes.judging import (
    EVERY_SECONDS,
    PATIENCE_SECONDS,
    JudgingLines,
    shown,
)
from tests import patience


def test_a_slow_reward_is_named_and_not_too_often() -> None:
    step = SimpleNamespace(num_taken=8, unjudged=(3, 5))
    lines = JudgingLines("step 2", step)
    said = {now: line for now in range(1, 60) if (line := lines.look(float(now)))}
    first = 1 + int(PATIENCE_SECONDS)
    assert sorted(said) == [first, first + int(EVERY_SECONDS)]
    assert said[first].startswith("  step 2: 2 of 8 responses that have come wait for their reward")
    assert "for 10 s" in said[first] and "for 40 s" in said[first + int(EVERY_SECONDS)]


def test_rewards_that_come_are_no_news() -> None:
    """Some wait all the time, but none of them for long."""
    lines, step = None, SimpleNamespace(num_taken=100, unjudged=())
    lines = JudgingLines("step 0", step)
    for now in range(100):
        step.unjudged = (now // 5, now // 5 + 1)
        assert lines.look(float(now)) == ""


def test_lines_are_said_while_the_block_runs() -> None:
    said, heard = [], threading.Event()

    def note(line: str) -> None:
        said.append(line)
        heard.set()

    lines = JudgingLines("step 1", SimpleNamespace(num_taken=1, unjudged=()))
    lines.look = lambda now: f"at {now:g}"  # type: ignore[method-assign]
    with shown(lines, note):
        assert heard.wait(patience.PATIENCE_SECONDS)
    assert said[0] == "at 1"
