"""What is said of rows, and that it is said once."""

import re
from dataclasses import replace

import pytest

from configs import base
from rlboost_jax.observe.diagnostics import STEPS, Diagnostics, diagnose, is_behind
from rlboost_jax.settings.config_loading import run_config
from tests.observe.conftest import row

RUN = run_config(base.get_config())


def rows(count: int, **values: object) -> list[dict[str, object]]:
    return [row(step, **values) for step in range(count)]


def test_a_healthy_run_is_silent() -> None:
    """Also one whose entropy falls far as it learns, as the quickstart's does, 0.48 to 0.019."""
    learning = [
        row(step, entropy=0.019 + 0.46 * 0.9**step, truncated_fraction=0.6, reward_std=0.3)
        for step in range(60)
    ]
    assert diagnose(RUN, learning) == []


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"reward_mean": 0.0, "reward_std": 0.0}, "every reward was 0, so .* samples.jsonl"),
        ({"truncated_fraction": 1.0}, "cut off at 200 tokens; raise sampling.max_response_tokens"),
    ],
)
def test_each_is_said_once_after_some_steps(values: dict[str, object], said: str) -> None:
    looked = Diagnostics(RUN)
    lines = [looked.after(each) for each in rows(3 * STEPS, **values)]
    assert [len(found) for found in lines] == [0] * (STEPS - 1) + [1] + [0] * (2 * STEPS)
    (line,) = lines[STEPS - 1]
    assert line.startswith(f"warning: steps 0 to {STEPS - 1}: ")
    assert re.search(said, line)


def test_one_good_step_between_bad_ones_is_enough() -> None:
    bad = {"reward_mean": 0.0, "reward_std": 0.0}
    mixed = [row(step, **(bad if step % STEPS else {})) for step in range(30)]
    assert diagnose(RUN, mixed) == []


def test_rewards_that_are_equal_in_a_step_but_move_are_no_sign() -> None:
    moving = [row(step, reward_mean=0.1 * step, reward_std=0.0) for step in range(6)]
    assert diagnose(RUN, moving) == []


def test_a_collapse_is_measured_against_the_beginning() -> None:
    fell = [row(step, entropy=1.0 if step < 5 else 0.001) for step in range(10)]
    (line,) = diagnose(RUN, fell)
    assert "fell from 1 to 0.001" in line and "steps 5 to 7" in line
    assert diagnose(RUN, [row(step, entropy=0.001) for step in range(10)]) == []


SEVERAL = base.get_config()
SEVERAL.task.name = "dataset"
SEVERAL.data.source = "questions.jsonl"
SEVERAL.data.prompt_column = "question"
SEVERAL.data.tokenizer = "bytes"
SEVERAL.model.vocab_size = 258
SEVERAL.warmup.max_updates = 0
SEVERAL.rewards.functions = ({"name": "math", "label": "right"}, {"name": "my:short"})


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ([0.3] * 3 + [0.02] * 4, "steps 3 to 5: reward/right, .* fell from 0.3 to 0.02"),
        ([0.0] * 7, "steps 0 to 2: reward/right, .* gave every response 0"),
        ([0.3] * 3 + [0.04] * 4, ""),  # worse, but it is not gone
        ([0.3] * 3 + [0.0, 0.0, 0.1] * 3, ""),
        ([-0.3] * 3 + [-0.01] * 4, ""),  # a penalty that is avoided
    ],
)
def test_a_policy_that_pleases_the_other_rewards_only(first: list[float], said: str) -> None:
    pleasing = [
        row(step, reward_mean=value + 0.1, **{"reward/right": value, "reward/my:short": 0.1})
        for step, value in enumerate(first)
    ]
    lines = diagnose(run_config(SEVERAL), pleasing)
    assert len(lines) == bool(said)
    assert not said or re.search(said, lines[0])


def test_a_run_that_goes_on_does_not_repeat_itself() -> None:
    bad = rows(10, reward_mean=0.5, reward_std=0.0)
    again = Diagnostics(RUN, bad[:6])
    assert [again.after(each) for each in bad[6:]] == [[]] * 4


def test_rows_of_before_say_nothing_of_what_they_lack() -> None:
    old = [
        {k: v for k, v in each.items() if k not in ("truncated_fraction", "entropy")}
        for each in rows(10)
    ]
    assert diagnose(RUN, old) == []


@pytest.mark.parametrize(
    ("every", "most", "durable", "behind"),
    [
        *((1, 10, 20, False), (1, 10, 15, False), (1, 10, 14, True), (4, 10, 12, False)),
        *((4, 10, 11, True), (1, 1, 19, False), (1, 2, 18, True), (1, 10, None, False)),
    ],
)
def test_a_durable_checkpoint_is_behind_half_way_to_where_training_waits(
    every: int, most: int, durable: int | None, behind: bool
) -> None:
    """At step 20; every fourth step, three steps more are none too many."""
    checkpoint = replace(RUN.checkpoint, every_steps=every, max_behind=most)
    run = replace(RUN, checkpoint=checkpoint)
    late = [row(20 + i, durable_step=durable and durable + i) for i in range(STEPS)]
    assert is_behind(run, late[0]) is behind
    lines = diagnose(run, late)
    assert len(lines) == behind
    if behind:
        assert f"checkpoint {durable + STEPS - 1} is the newest that is durable" in lines[0]
