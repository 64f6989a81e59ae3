from itertools import pairwise

import numpy as np
import pytest

from configs import base
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.data.tasks import EPOCH, Task, get_task, split_of
from rlboost_jax.settings.config_loading import run_config


@pytest.fixture
def task() -> Task:
    return get_task(run_config(base.get_config()).task)


def tokens(prompts) -> list[list[int]]:
    return [prompt.tokens.tolist() for prompt in prompts]


def test_any_prompts_at_any_time(task: Task) -> None:
    """A run that resumes at prompt 35 gets what the run that died would have got."""
    in_order = tokens(PromptStream(task, seed=3).slice(0, 45))
    resumed = PromptStream(task, seed=3)
    for first, count in ((40, 5), (35, 7), (0, 1)):
        assert tokens(resumed.slice(first, count)) == in_order[first : first + count]


def test_all_prompts_are_from_the_train_split(task: Task) -> None:
    stream = PromptStream(task, seed=0)
    for first in (0, 24, 24 * 10**6):
        prompts = stream.slice(first, 24)
        assert len(prompts) == 24
        assert all(split_of(prompt.problem) == "train" for prompt in prompts)
        for prompt in prompts:
            np.testing.assert_array_equal(prompt.tokens, task.prompt_tokens(prompt.problem))


def test_seeds_and_steps_differ(task: Task) -> None:
    one, other = (PromptStream(task, seed=seed) for seed in (0, 1))
    steps = [tokens(one.slice(0, 24)), tokens(one.slice(24, 24)), tokens(other.slice(0, 24))]
    assert all(a != b for a, b in pairwise(steps)) and steps[0] != steps[2]


def test_an_epoch_comes_again_in_another_order(task: Task) -> None:
    stream = PromptStream(task, seed=0)
    first, again = (stream.slice(start, 64) for start in (0, EPOCH))
    assert tokens(first) != tokens(again)


def test_heldout_prompts_never_change_within_a_seed(task: Task) -> None:
    assert tokens(task.heldout(0, 16)) == tokens(task.heldout(0, 32))[:16]
    assert all(split_of(prompt.problem) == "heldout" for prompt in task.heldout(0, 64))
