"""The prompts of each step, by random access: any step can be asked for at any time.

A resumed run asks for the step that it has reached and gets what it would have got; no
iterator state needs to be saved.
"""

from dataclasses import dataclass
from typing import Final, SupportsIndex

import grain

from rlboost_jax.data.tasks import Problem, Split, Task, Tokens

EPOCH: Final = 2**20  # problems before they come again, in another order


@dataclass(frozen=True, kw_only=True)
class Prompt:
    tokens: Tokens
    problem: Problem


class PromptStream:
    """Training prompts, `prompts_per_step` to a step, in an order named by the seed."""

    def __init__(self, task: Task, *, seed: int, prompts_per_step: int) -> None:
        self._prompts_per_step = prompts_per_step
        self._prompts: grain.MapDataset[Prompt] = (
            grain.MapDataset.source(_Problems(task, "train", seed, EPOCH))
            .seed(seed)
            .shuffle()
            .repeat()
            .map(lambda problem: _prompt(task, problem))
        )

    def step(self, step: int) -> tuple[Prompt, ...]:
        first = step * self._prompts_per_step
        return tuple(self._prompts[first + i] for i in range(self._prompts_per_step))


def heldout(task: Task, seed: int, count: int) -> tuple[Prompt, ...]:
    """Prompts for evaluation; none of them ever appears in training, whatever its seed."""
    problems = _Problems(task, "heldout", seed, count)
    return tuple(_prompt(task, problems[i]) for i in range(count))


class _Problems:
    """The problems of a split as Grain's random-access source."""

    def __init__(self, task: Task, split: Split, seed: int, count: int) -> None:
        self._task, self._split, self._seed, self._count = task, split, seed, count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: SupportsIndex) -> Problem:
        return self._task.problem(self._split, self._seed, int(index))


def _prompt(task: Task, problem: Problem) -> Prompt:
    return Prompt(tokens=task.prompt_tokens(problem), problem=problem)
