"""What a model is taught in its warm-up: worked answers and guesses, as sequences.

Of a generated task a lesson is a prompt and a response. Of an environment it is a whole episode:
what the environment says is given, as it is when the policy speaks, and never a target.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.data.tasks import Task
from rlboost_jax.environments.protocol import Environment, Observation, ToolResult, Turn
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.errors import ConfigError


class Lessons(Protocol):
    @property
    def name(self) -> str: ...

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        """Lesson `index`, which follows from it and, of a guess, from `rng`."""
        ...


class TaskLessons:
    """Of a generated task."""

    def __init__(self, task: Task, seed: int) -> None:
        self._task, self._seed, self.name = task, seed, task.name

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        problem = self._task.problem("train", self._seed, index)
        answer = self._task.worked_answer(problem) if worked else self._task.guess(problem, rng)
        return taught((self._task.prompt_tokens(problem), answer))


@runtime_checkable
class Demonstrates(Protocol):
    """An environment that can show how episodes are done, turn by turn."""

    def demonstration(self, rng: np.random.Generator, worked: bool, /) -> str | NDArray[np.int32]:
        """The next turn, once `reset` or `step` has said something: text, or token ids to their
        end token.

        Args:
            worked: of who knows how; else of who guesses.
        """
        ...


class EpisodeLessons:
    """Of an environment that demonstrates. Its tools are called with the key ""."""

    def __init__(self, name: str, make: Callable[[], Environment], seed: int) -> None:
        """
        Args:
            make: an environment, for each lesson anew.

        Raises:
            ConfigError: it does not demonstrate.
        """
        if not isinstance(make(), Demonstrates):
            raise ConfigError(
                f"warmup.max_updates is above 0, and the environment {name!r} has no method "
                "`demonstration` that shows how episodes are done; set it to 0, or write one"
            )
        self._make, self._seed, self.name = make, seed, name

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        environment: Any = self._make()
        runs = [_ids(environment.reset({"index": index}, self._seed))]
        for number in range(MOST_TURNS):
            runs.append(_ids(environment.demonstration(rng, worked)))
            step = environment.step(_carried_out(environment, number, runs[-1]))
            if step.done or not len(step.observation):
                break
            runs.append(_ids(step.observation))
        return taught(runs)


MOST_TURNS = 64


def _carried_out(environment: Any, index: int, tokens: NDArray[np.int32]) -> Turn:
    ids = tuple(tokens.tolist())
    turn = Turn(index=index, tokens=ids, text="")
    calls = environment.calls(turn)
    tools: Mapping[str, Any] = environment.tools
    results = tuple(
        ToolResult(call=call, content=tools[call.name].run(call.arguments, "")) for call in calls
    )
    return Turn(index=index, tokens=ids, text="", calls=tuple(calls), results=results)


def taught(runs: Iterable[NDArray[np.int32]]) -> Sequence:
    """Tokens in turn given and to be said by the policy itself."""
    parts = [run for run in runs]
    count = sum(map(len, parts[1::2]))
    return Sequence(
        tokens=np.concatenate(parts),
        runs=tuple(map(len, parts)),
        logprobs=np.zeros(count, np.float32),
        versions=((Version(0), count),),
    )


def _ids(said: Observation) -> NDArray[np.int32]:
    assert isinstance(said, np.ndarray)
    return said
