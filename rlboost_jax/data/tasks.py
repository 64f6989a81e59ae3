"""Generated tasks whose answers can be checked, with lengths that vary by 10x and more.

Every problem is a function of (split, seed, index) alone. A problem belongs to the held-out
split or to training by a hash of its operands: the splits are disjoint whatever the seed.
"""

import hashlib
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Literal, Protocol, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from rlboost_jax.data import clock_task, reversal_task, running_sum_task, vocabulary
from rlboost_jax.data.exercises import AskGroup, Prompt, Tokens
from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.verdict import Verdict, at_once
from rlboost_jax.settings.data_config import TaskConfig
from rlboost_jax.settings.task_sizes import MIN_LENGTH, TASK_SIZES, task_size

Split = Literal["train", "heldout"]

HELDOUT_SHARE: Final = 8  # one problem in so many is held out
EPOCH: Final = 2**20  # problems before they come again, in another order


class Rules(Protocol):
    """Interface of a task's module. Tokens go without marks."""

    def draw(self, rng: np.random.Generator, length: int, /) -> tuple[int, ...]: ...
    def question(self, operands: tuple[int, ...], /) -> list[int]: ...
    def work(self, operands: tuple[int, ...], /) -> list[int]: ...
    def answer(self, operands: tuple[int, ...], /) -> list[int]: ...


RULES: Final[Mapping[str, Rules]] = {
    "clock": clock_task,
    "running_sum": running_sum_task,
    "reversal": reversal_task,
}
assert RULES.keys() == TASK_SIZES.keys()


@dataclass(frozen=True, kw_only=True)
class TaskProblem:
    task: str
    operands: tuple[int, ...]


class Task:
    """A family of problems: `Exercises` that judge at once. `get_task` is the maker.

    Lengths are MIN_LENGTH + Exp(mean_length), cut at max_length.
    """

    def __init__(self, config: TaskConfig) -> None:
        size = task_size(config)
        self.name = config.name
        self.vocab_size = size.vocab_size
        self.max_prompt_tokens = size.max_prompt_tokens
        self.max_response_tokens = size.max_response_tokens  # of a worked answer
        self.stop_ids: tuple[int, ...] = (END,)
        self.stops = b""
        self.record: Mapping[str, object] | None = None  # nothing is read
        self.ask_group: AskGroup | None = None  # each answer is right or wrong by itself
        self._rules = RULES[config.name]
        self._mean_length = config.mean_length
        self._max_length = config.max_length

    def train(self, seed: int) -> "Problems":
        return Problems(self, "train", seed, EPOCH)

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        problems = Problems(self, "heldout", seed, count)
        return tuple(problems[index] for index in range(count))

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        reward = self.reward(prompt.problem, response_tokens)
        return at_once(Verdict(reward=reward, accuracy=reward, components={self.name: reward}))

    def close(self) -> None:
        """Do nothing: there is nothing to end."""

    def problem(self, split: Split, seed: int, index: int) -> TaskProblem:
        """Problem of this index: the first of the split among the index's own draws."""
        rng = np.random.default_rng([index, seed, split == "heldout"])
        while True:
            length = MIN_LENGTH + int(rng.exponential(self._mean_length))
            operands = self._rules.draw(rng, min(length, self._max_length))
            problem = TaskProblem(task=self.name, operands=operands)
            if split_of(problem) == split:
                return problem

    def prompt_tokens(self, problem: TaskProblem) -> Tokens:
        return _tokens([BEGIN, *self._rules.question(problem.operands), EQUALS])

    def worked_answer(self, problem: TaskProblem) -> Tokens:
        """The response that shows every step."""
        return _tokens([*self._rules.work(problem.operands), *self._ending(problem)])

    def guess(self, problem: TaskProblem, rng: np.random.Generator) -> Tokens:
        """A response of random digits without any work; right by chance only."""
        num_digits = len(self._rules.answer(problem.operands))
        digits = [vocabulary.digit(int(d)) for d in rng.integers(10, size=num_digits)]
        return _tokens([ANSWER, *digits, END])

    def reward(self, problem: TaskProblem, response_tokens: ArrayLike) -> float:
        """1 if the response ends in the mark, the right answer and the end; else 0."""
        ending = self._ending(problem)
        return float(np.asarray(response_tokens).tolist()[-len(ending) :] == ending)

    def text(self, tokens: ArrayLike) -> str:
        """Decode tokens for people."""
        return vocabulary.text(np.asarray(tokens).tolist())

    def _ending(self, problem: TaskProblem) -> list[int]:
        return [ANSWER, *self._rules.answer(problem.operands), END]


class Problems:
    """The prompts of a split, as Grain's random-access source."""

    def __init__(self, task: Task, split: Split, seed: int, count: int) -> None:
        self._task, self._split, self._seed, self._count = task, split, seed, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> Prompt:
        problem = self._task.problem(self._split, self._seed, int(index))
        return Prompt(tokens=self._task.prompt_tokens(problem), problem=problem)


def get_task(config: TaskConfig) -> Task:
    """Build the configured task. Raises ConfigError if it does not exist."""
    if config.name not in RULES:
        raise ConfigError(f"task.name {config.name!r} does not exist; known: {', '.join(RULES)}")
    return Task(config)


def split_of(problem: TaskProblem) -> Split:
    """The split that a problem belongs to, in every run."""
    digest = hashlib.blake2b(repr(problem.operands).encode(), digest_size=8).digest()
    return "train" if int.from_bytes(digest, "little") % HELDOUT_SHARE else "heldout"


def _tokens(values: list[int]) -> Tokens:
    return np.asarray(values, np.int32)
