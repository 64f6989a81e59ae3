import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs import base
from rlboost_jax.data.tasks import HELDOUT_SHARE, RULES, Task, TaskProblem, get_task, split_of
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.data_config import TaskConfig
from rlboost_jax.settings.task_sizes import task_size

CONFIG = run_config(base.get_config()).task
TASKS = {name: get_task(dataclasses.replace(CONFIG, name=name)) for name in RULES}
seeds = st.integers(0, 2**31 - 1)
indices = st.integers(0, 2**40)
splits = st.sampled_from(["train", "heldout"])


@pytest.fixture(params=list(RULES))
def task(request: pytest.FixtureRequest) -> Task:
    return TASKS[request.param]


def solve(text: str) -> str:
    """The answer to a question as a person would find it, from the printed prompt alone."""
    *question, equals = text.removeprefix("<begin> ").split()
    assert equals == "="
    if question[-1].startswith("["):  # clock: walk n times around the dial
        hand, step, count = int(question[0]), int(question[1]), int(question[2][1:-1])
        for _ in range(count):
            hand = hand + step if hand + step < 10 else hand + step - 10
        return str(hand)
    return " ".join(question)


def solved(task: Task, problem: TaskProblem) -> str:
    found = solve(task.text(task.prompt_tokens(problem)))
    if task.name == "running_sum":
        return str(sum(map(int, found.split())))[-1]
    if task.name == "reversal":
        return found[::-1]
    return found


@given(name=st.sampled_from(list(RULES)), split=splits, seed=seeds, index=indices)
def test_worked_answers_are_right(name: str, split: str, seed: int, index: int) -> None:
    task = TASKS[name]
    problem = task.problem(split, seed, index)
    worked = task.worked_answer(problem)
    text = task.text(worked)
    assert text.endswith(f"# {solved(task, problem)} <end>")
    assert task.reward(problem, worked) == 1.0
    assert list(worked).count(task.stop_ids[0]) == 1 and worked[-1] == task.stop_ids[0]


@given(name=st.sampled_from(list(RULES)), split=splits, seed=seeds, index=indices)
def test_nothing_is_longer_than_announced(name: str, split: str, seed: int, index: int) -> None:
    task = TASKS[name]
    problem = task.problem(split, seed, index)
    guess = task.guess(problem, np.random.default_rng(seed))
    for tokens in (task.prompt_tokens(problem), task.worked_answer(problem), guess):
        assert tokens.dtype == np.int32
        assert tokens.min() >= 0 and tokens.max() < task.vocab_size
    assert len(task.prompt_tokens(problem)) <= task.max_prompt_tokens
    assert max(len(task.worked_answer(problem)), len(guess)) <= task.max_response_tokens


@pytest.mark.parametrize("max_length", [2, 7, 95])
@pytest.mark.parametrize("name", list(RULES))
def test_the_longest_problem_has_the_announced_size(name: str, max_length: int) -> None:
    config = TaskConfig(name=name, mean_length=1e6, max_length=max_length, num_heldout=1)
    task, size = get_task(config), task_size(config)
    problem = task.problem("train", 0, 0)  # of length max_length, nearly surely
    assert len(task.prompt_tokens(problem)) == size.max_prompt_tokens
    assert len(task.worked_answer(problem)) == size.max_response_tokens


def test_lengths_vary_by_ten_times_and_more(task: Task) -> None:
    rng = np.random.default_rng(0)
    problems = [task.problem("train", 0, index) for index in range(500)]
    worked = [len(task.worked_answer(problem)) for problem in problems]
    assert max(worked) >= 10 * min(worked)
    if task.name != "reversal":  # where even a guess writes the whole list
        assert all(len(task.guess(problem, rng)) == 3 for problem in problems)


def test_lengths_have_the_mean_they_were_given() -> None:
    """2 + Exp(14), rounded down and cut at 90: mean 15.5 to within a few standard errors."""
    lengths = [TASKS["clock"].problem("train", 0, index).operands[-1] for index in range(4000)]
    assert np.mean(lengths) == pytest.approx(15.5, abs=0.9)
    assert min(lengths) >= 2 and max(lengths) <= 90


@given(name=st.sampled_from(list(RULES)), seeds=st.tuples(seeds, seeds), index=indices)
def test_the_splits_are_disjoint(name: str, seeds: tuple[int, int], index: int) -> None:
    train = TASKS[name].problem("train", seeds[0], index)
    heldout = TASKS[name].problem("heldout", seeds[1], index)
    assert split_of(train) == "train" and split_of(heldout) == "heldout"
    assert train.operands != heldout.operands


def test_the_heldout_split_is_as_large_as_it_says() -> None:
    """The share is of all 10 · 3 · 89 clock problems."""
    everything = [
        TaskProblem(task="clock", operands=(x, a, n))
        for x in range(10)
        for a in range(1, 4)
        for n in range(2, 91)
    ]
    share = np.mean([split_of(problem) == "heldout" for problem in everything])
    assert share == pytest.approx(1 / HELDOUT_SHARE, abs=0.02)


@given(name=st.sampled_from(list(RULES)), seed=seeds, index=indices)
def test_a_problem_is_named_by_its_index(name: str, seed: int, index: int) -> None:
    task, again = TASKS[name], get_task(dataclasses.replace(CONFIG, name=name))
    assert task.problem("train", seed, index) == again.problem("train", seed, index)


def test_seeds_and_indices_give_other_problems(task: Task) -> None:
    problems = [task.problem("train", seed, index) for seed in (0, 1) for index in range(100)]
    assert len({problem.operands for problem in problems}) > 100


def test_the_reward_is_for_the_whole_ending_only() -> None:
    task = TASKS["clock"]
    problem = TaskProblem(task="clock", operands=(5, 2, 3))  # 5, 7, 9, 1
    mark, right, wrong, end = 4, 5 + 1, 5 + 2, 1
    assert task.reward(problem, [mark, right, end]) == 1.0
    assert task.reward(problem, [9, 9, mark, right, end]) == 1.0
    for response in (
        [],
        [end],
        [right, end],
        [mark, right],  # cut off before its end
        [mark, wrong, end],
        [mark, right, end, end],
        [right, mark, end],
        [mark, right, end, mark, wrong, end],
    ):
        assert task.reward(problem, np.array(response, np.int32)) == 0.0


def test_a_reversal_must_be_whole() -> None:
    task = TASKS["reversal"]
    problem = TaskProblem(task="reversal", operands=(1, 2, 3))
    digits = {d: 5 + d for d in range(10)}
    assert task.reward(problem, [4, digits[3], digits[2], digits[1], 1]) == 1.0
    assert task.reward(problem, [4, digits[2], digits[1], 1]) == 0.0


def test_one_guess_in_ten_is_right() -> None:
    task, rng = TASKS["clock"], np.random.default_rng(0)
    problems = [task.problem("train", 0, index) for index in range(2000)]
    rewards = [task.reward(problem, task.guess(problem, rng)) for problem in problems]
    assert np.mean(rewards) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize(
    ("name", "operands", "question", "worked"),
    [
        ("clock", (5, 2, 3), "5 2 [3]", "[2] 7 [1] 9 [0] 1 # 1"),
        ("running_sum", (7, 0, 6), "7 0 6", "[2] 7 [1] 7 [0] 3 # 3"),
        ("reversal", (7, 0, 6), "7 0 6", "[2] 6 [1] 0 [0] 7 # 6 0 7"),
    ],
)
def test_examples(name: str, operands: tuple[int, ...], question: str, worked: str) -> None:
    task, problem = TASKS[name], TaskProblem(task=name, operands=operands)
    assert task.text(task.prompt_tokens(problem)) == f"<begin> {question} ="
    assert task.text(task.worked_answer(problem)) == f"{worked} <end>"


def test_tokens_that_mean_nothing_can_be_read_too() -> None:
    assert TASKS["clock"].text([0, 15, 111, 112, -1]) == "_ <15> [95] <112> <-1>"


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'dial'.*clock, running_sum, reversal"):
        get_task(dataclasses.replace(CONFIG, name="dial"))
