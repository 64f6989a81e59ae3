"""What a model is taught in its warm-up: worked answers and guesses, as sequences.

Of a generated task a lesson is a prompt and a response. Of an environment it is a whole episode:
what the environment says is given, as it is when the policy speaks, and never a target.
"""

import asyncio
import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.chat.conversation import Conversation, Given, ParsedTurn
from rlboost_jax.chat.opening import conversation_of
from rlboost_jax.data.tasks import Task, get_task
from rlboost_jax.data.tokenizers import BYTES, ByteTokenizer, open_tokenizer
from rlboost_jax.environments.factories import maker_of
from rlboost_jax.environments.protocol import Environment, Message, Observation, ToolResult, Turn
from rlboost_jax.sequences.identities import Version
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.run import RunConfig

MOST_TURNS: Final = 64  # of a lesson
_STREAM: Final = 0x5EED  # sets the warm-up's random numbers apart from others of the seed


@runtime_checkable
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
    """Of an environment that demonstrates. Its tools are run in this process, with the key ""."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Environment],
        seed: int,
        *,
        conversation: Conversation | None = None,
    ) -> None:
        """
        Args:
            make: an environment, for each lesson anew.
            conversation: of the tokenizer "bytes"; None: all that is said is token ids.

        Raises:
            ConfigError: it does not demonstrate.
        """
        if not isinstance(make(), Demonstrates):
            raise ConfigError(
                f"warmup.max_updates is above 0, and the environment {name!r} has no method "
                "`demonstration` that shows how episodes are done; set it to 0, or write one"
            )
        self._make, self._seed, self.name = make, seed, name
        self._conversation = conversation

    def lesson(self, index: int, rng: np.random.Generator, *, worked: bool) -> Sequence:
        environment: Any = self._make()
        said = _Said(self._conversation)
        runs = [said.first(_now(environment.reset({"index": index}, self._seed)))]
        for number in range(MOST_TURNS):
            runs.append(_ids(environment.demonstration(rng, worked)))
            turn, parsed = said.turn(number, runs[-1])
            step = _now(environment.step(_carried_out(environment, turn)))
            if step.done or not len(step.observation):
                break
            runs.append(said.after(parsed, step.observation))
        return taught(runs)


class _Said:
    """What an environment says in an episode, as token ids."""

    def __init__(self, conversation: Conversation | None) -> None:
        self._conversation = conversation
        self._before: list[Message] = []

    def first(self, said: Observation) -> NDArray[np.int32]:
        if isinstance(said, np.ndarray):
            return said
        self._before = _messages(said)
        return self._known.first(self._before)

    def turn(self, number: int, tokens: NDArray[np.int32]) -> tuple[Turn, ParsedTurn | None]:
        ids = tuple(tokens.tolist())
        if self._conversation is None:
            return Turn(index=number, tokens=ids, text=""), None
        parsed = self._conversation.parse(tokens)
        turn = Turn(
            index=number,
            tokens=ids,
            text=parsed.text,
            thinking=parsed.thinking,
            calls=parsed.calls,
        )
        return turn, parsed

    def after(self, turn: ParsedTurn | None, said: Observation) -> NDArray[np.int32]:
        if isinstance(said, np.ndarray):
            return said
        new, conversation = _messages(said), self._known
        assert turn is not None
        following = conversation.after(self._before, turn, new)
        assert isinstance(following, Given), "bytes never begin anew"
        self._before += [turn.message, *new]
        return following.tokens

    @property
    def _known(self) -> Conversation:
        if self._conversation is None:
            raise ConfigError(
                "an environment that speaks in text can be learned from in a warm-up with "
                "data.tokenizer 'bytes' only; set warmup.max_updates to 0"
            )
        return self._conversation


def lessons_of(run: RunConfig) -> Lessons:
    """Raises ConfigError where an environment has none to give."""
    environment, seed = run.environment, lessons_seed(run)
    if not environment.name:
        return TaskLessons(get_task(run.task), seed)
    conversation = None
    if run.data.tokenizer == BYTES:
        conversation = conversation_of(
            open_tokenizer(run.data), tool_format=environment.tool_format
        )
    make = maker_of(environment.name, environment.options)
    return EpisodeLessons(environment.name, make, seed, conversation=conversation)


def lessons_seed(run: RunConfig) -> int:
    """Of the lessons' problems, and of which are worked."""
    return run.seed ^ _STREAM


def taught(runs: Iterable[NDArray[np.int32]]) -> Sequence:
    """Tokens in turn given and to be said by the policy itself."""
    parts = list(runs)
    count = sum(map(len, parts[1::2]))
    return Sequence(
        tokens=np.concatenate(parts),
        runs=tuple(map(len, parts)),
        logprobs=np.zeros(count, np.float32),
        versions=((Version(0), count),),
    )


def _carried_out(environment: Any, turn: Turn) -> Turn:
    own = getattr(environment, "calls", None)
    calls = turn.calls if own is None else tuple(own(turn))
    results = tuple(
        ToolResult(
            call=call, content=str(_now(environment.tools[call.name].run(call.arguments, "")))
        )
        for call in calls
    )
    return Turn(
        index=turn.index,
        tokens=turn.tokens,
        text=turn.text,
        thinking=turn.thinking,
        calls=calls,
        results=results,
    )


def _messages(said: Any) -> list[Message]:
    return [Message(role="user", content=said)] if isinstance(said, str) else list(said)


def _ids(turn: str | NDArray[np.int32]) -> NDArray[np.int32]:
    """Of a turn, with its end."""
    if isinstance(turn, str):
        return np.array([*turn.encode(), ByteTokenizer.END], np.int32)
    return np.asarray(turn, np.int32)


def _now(value: Any) -> Any:
    """What an environment returns, of an `async def` as well."""
    if not inspect.isawaitable(value):
        return value

    async def awaited() -> Any:
        return await value

    return asyncio.run(awaited())
