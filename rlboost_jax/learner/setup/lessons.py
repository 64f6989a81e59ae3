"""Sequences for the warm-up: worked answers and guesses.

In a generated task a lesson is a prompt and a response, in an environment a whole episode: what the
environment says is given, as it is when the policy acts, and never a target.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.chat.conversation import Given, ParsedTurn
from rlboost_jax.data.tasks import Task, get_task
from rlboost_jax.data.tokenizers import ByteTokenizer, open_tokenizer
from rlboost_jax.environments.environment_frames import ToolSpec
from rlboost_jax.environments.factories import maker_of
from rlboost_jax.environments.prompt_renderer import (
    PromptRenderer,
    messages_of,
    renderer_of,
)
from rlboost_jax.environments.protocol import Environment, ToolResult, Turn
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.run_config import RunConfig

MOST_TURNS: Final = 64  # of a lesson
_STREAM: Final = 0x5EED  # sets the warm-up's random numbers apart from others of the seed


@runtime_checkable
class Lessons(Protocol):
    @property
    def name(self) -> str: ...

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        """Build lesson `index`, a function of the index and, for a guess, of `rng`."""
        ...


class TaskLessons:
    """Lessons of a generated task."""

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
        """The next turn after `reset` or `step`: text, or token ids with their end token.

        Args:
            worked: whether by an expert; else a guess.
        """
        ...


class EpisodeLessons:
    """Lessons of an environment that demonstrates.

    Its tools run in this process, with the key "".
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Environment],
        seed: int,
        *,
        renderer: PromptRenderer,
        written: Callable[[str], NDArray[np.int32]],
    ) -> None:
        """
        Args:
            make: an environment, for each lesson anew.
            renderer: what the environment says, as the policy reads it.
            written: a turn in text as token ids, to its end token.

        Raises:
            ConfigError: it does not demonstrate.
        """
        if not isinstance(make(), Demonstrates):
            raise ConfigError(
                f"warmup.max_updates is above 0, and the environment {name!r} has no method "
                "`demonstration` that shows how episodes are done; set it to 0, or write one"
            )
        self._make, self._seed, self.name = make, seed, name
        self._renderer, self._written = renderer, written

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        environment: Any = self._make()
        first = _now(environment.reset({"index": index}, self._seed))
        tools = [ToolSpec.of(tool) for tool in getattr(environment, "tools", {}).values()]
        before = list(messages_of(first))
        runs = [self._renderer.first(first, tools)]
        for number in range(MOST_TURNS):
            runs.append(self._ids(environment.demonstration(rng, worked)))
            parsed = self._renderer.parse(runs[-1].tolist())
            turn = _carried_out(environment, number, runs[-1], parsed)
            step = _now(environment.step(turn))
            if step.done:
                break
            following, said = self._renderer.after(
                before, parsed, turn.results, step.observation, tools
            )
            if not (isinstance(following, Given) and len(following.tokens)):
                break
            before += said
            runs.append(following.tokens)
        return taught(runs)

    def _ids(self, turn: str | NDArray[np.int32]) -> NDArray[np.int32]:
        return self._written(turn) if isinstance(turn, str) else np.asarray(turn, np.int32)


def lessons_of(run: RunConfig) -> Lessons:
    """Lessons of a run. Raises ConfigError if its environment has none."""
    environment, seed = run.environment, lessons_seed(run)
    if not environment.name:
        return TaskLessons(get_task(run.task), seed)
    make = maker_of(environment.name, environment.options)
    tokenizer = open_tokenizer(run.data) if run.data.tokenizer else None

    def written(turn: str) -> NDArray[np.int32]:
        if not isinstance(tokenizer, ByteTokenizer):
            raise ConfigError(
                f"environment {environment.name!r} demonstrates turns in text, which need "
                "data.tokenizer 'bytes'; give token ids, or set warmup.max_updates to 0"
            )
        return np.array([*turn.encode(), ByteTokenizer.END], np.int32)

    renderer = renderer_of(run, ())
    return EpisodeLessons(environment.name, make, seed, renderer=renderer, written=written)


def lessons_seed(run: RunConfig) -> int:
    """The seed of the lessons' problems, and of the choice of worked ones."""
    return run.seed ^ _STREAM


def taught(runs: Iterable[NDArray[np.int32]]) -> Sequence:
    """Sequence of runs that are given and sampled in turn."""
    parts = list(runs)
    count = sum(map(len, parts[1::2]))
    return Sequence(
        tokens=np.concatenate(parts),
        runs=tuple(map(len, parts)),
        logprobs=np.zeros(count, np.float32),
        versions=((Version(0), count),),
    )


def _carried_out(
    environment: Any, number: int, tokens: NDArray[np.int32], parsed: ParsedTurn
) -> Turn:
    turn = Turn(
        index=number,
        tokens=tuple(tokens.tolist()),
        text=parsed.text,
        thinking=parsed.thinking,
        calls=parsed.calls,
    )
    own = getattr(environment, "calls", None)
    calls = turn.calls if own is None else tuple(own(turn))
    results = tuple(
        ToolResult(
            call=call, content=str(_now(environment.tools[call.name].run(call.arguments, "")))
        )
        for call in calls
    )
    return replace(turn, calls=calls, results=results)


def _now(value: Any) -> Any:
    """Result of an environment's method, also of an `async def`."""
    if not inspect.isawaitable(value):
        return value

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())
