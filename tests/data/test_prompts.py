from itertools import pairwise

import numpy as np
import pytest

from configs import base
from rlboost_jax.config.load import run_config
from rlboost_jax.data.prompts import PromptStream
from rlboost_jax.data.tasks import EPOCH, Task, get_task, split_of


@pytest.fixture
def task() -> Task:
    return get_task(run_config(base.get_config()).task)


def tokens(prompts) -> list[list[int]]:
    return [prompt.tokens.tolist() for prompt in prompts]


def test_any_step_at_any_time(task: Task) -> None:
    """A run that resumes at step 7 gets what the run that died would have got."""
    through = PromptStream(task, seed=3, prompts_per_step=5)
    in_order = [tokens(through.step(step)) for step in range(9)]
    resumed = PromptStream(task, seed=3, prompts_per_step=5)
    assert [tokens(resumed.step(step)) for step in (8, 7, 0)] == [in_order[s] for s in (8, 7, 0)]


def test_a_step_has_all_its_prompts_from_the_train_split(task: Task) -> None:
    stream = PromptStream(task, seed=0, prompts_per_step=24)
    for step in (0, 1, 10**6):
        prompts = stream.step(step)
        assert len(prompts) == 24
        assert all(split_of(prompt.problem) == "train" for prompt in prompts)
        for prompt in prompts:
            np.testing.assert_array_equal(prompt.tokens, task.prompt_tokens(prompt.problem))


def test_the_split_into_steps_does_not_change_the_order(task: Task) -> None:
    narrow = PromptStream(task, seed=1, prompts_per_step=2)
    wide = PromptStream(task, seed=1, prompts_per_step=6)
    assert tokens(wide.step(1)) == [t for step in (3, 4, 5) for t in tokens(narrow.step(step))]


def test_seeds_and_steps_differ(task: Task) -> None:
    one, other = (PromptStream(task, seed=seed, prompts_per_step=24) for seed in (0, 1))
    steps = [tokens(one.step(0)), tokens(one.step(1)), tokens(other.step(0))]
    assert all(a != b for a, b in pairwise(steps)) and steps[0] != steps[2]


def test_an_epoch_comes_again_in_another_order(task: Task) -> None:
    stream = PromptStream(task, seed=0, prompts_per_step=64)
    first, again = (stream.step(step) for step in (0, EPOCH // 64))
    assert tokens(first) != tokens(again)


def test_heldout_prompts_never_change_within_a_seed(task: Task) -> None:
    assert tokens(task.heldout(0, 16)) == tokens(task.heldout(0, 32))[:16]
    assert all(split_of(prompt.problem) == "heldout" for prompt in task.heldout(0, 64))
