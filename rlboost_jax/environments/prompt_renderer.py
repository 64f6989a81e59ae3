"""Conversion between an environment's observations, a policy's turns and token ids.

Where a run has a tokenizer, observations are texts and messages in its chat template's form
(`chat/`). Token ids are given as they are: all there is for a model with a small vocabulary of its
own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.chat.conversation import (
    Continuation,
    Conversation,
    Given,
    NewSequence,
    ParsedTurn,
    answers,
    described,
)
from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data import vocabulary
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.id_range import about_ids, ids_without_row
from rlboost_jax.data.tokenizers import open_tokenizer
from rlboost_jax.environments.environment_frames import ToolSpec
from rlboost_jax.environments.observations import is_empty
from rlboost_jax.environments.protocol import Message, Observation, ToolResult, Turn
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.sequences.endings import stopped
from rlboost_jax.settings.data_presets import resolved
from rlboost_jax.settings.run_config import RunConfig

Messages = Sequence[Message]


class UnencodableObservation(ValueError):
    """An observation that cannot become tokens; the message says why."""


@runtime_checkable
class PromptRenderer(Protocol):
    """Renders observations as token ids, and decodes turns.

    Attributes:
        stop_ids: end a turn.
        stops: of the stop strings, which end one, too.
        notes: lines for a person.
    """

    stop_ids: tuple[int, ...]
    stops: bytes
    notes: tuple[str, ...]

    def first(self, observation: Observation, tools: Sequence[ToolSpec]) -> NDArray[np.int32]:
        """Render the prompt that an episode begins with. Raises UnencodableObservation."""
        ...

    def parse(self, tokens: Sequence[int]) -> ParsedTurn:
        """Read a turn; never raises."""
        ...

    def after(
        self,
        before: Messages,
        turn: ParsedTurn,
        results: Sequence[ToolResult],
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> tuple[Continuation, Messages]:
        """Render what the policy continues with; with the messages of the turn and of what was
        said to it, none where it was given token ids.

        Results of calls come first, unless the observation has them itself: it has a message of
        the role "tool", or is made of token ids.

        Args:
            before: messages of the episode before the turn.

        Raises:
            UnencodableObservation
        """
        ...

    def text(self, tokens: Any) -> str:
        """Decode tokens for people."""
        ...


NOTHING = np.zeros(0, np.int32)


def turn_of(
    index: int,
    tokens: tuple[int, ...],
    parsed: ParsedTurn,
    renderer: PromptRenderer,
    logprobs: tuple[float, ...] = (),
) -> Turn:
    """Make the turn that an environment is given, whose calls are not carried out yet."""
    return Turn(
        index=index,
        tokens=tokens,
        text=parsed.text,
        thinking=parsed.thinking,
        calls=parsed.calls,
        finish="stop" if stopped(tokens, renderer.stop_ids, renderer.stops) else "length",
        logprobs=logprobs,
    )


class TokenRenderer:
    """Renderer for the vocabulary of generated tasks: observations are token ids."""

    stop_ids: tuple[int, ...] = (vocabulary.END,)
    stops = b""
    notes: tuple[str, ...] = ()

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def first(self, observation: Observation, tools: Sequence[ToolSpec]) -> NDArray[np.int32]:
        return self._tokens(observation)

    def parse(self, tokens: Sequence[int]) -> ParsedTurn:
        stop = tokens[-1] if stopped(tokens, self.stop_ids) else None
        text = vocabulary.text(tokens if stop is None else tokens[:-1])
        message = Message(role="assistant", content=text)
        return ParsedTurn(text=text, thinking="", calls=(), message=message, stop=stop)

    def after(
        self,
        before: Messages,
        turn: ParsedTurn,
        results: Sequence[ToolResult],
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> tuple[Continuation, Messages]:
        return Given(self._tokens(observation)), ()

    def text(self, tokens: Any) -> str:
        return vocabulary.text(np.asarray(tokens).tolist())

    def _tokens(self, observation: Observation) -> NDArray[np.int32]:
        if isinstance(observation, np.ndarray):
            return _within(observation, self._vocab_size)
        if is_empty(observation):
            return NOTHING
        raise UnencodableObservation(
            "the environment speaks text and the run has no tokenizer; set data.tokenizer, or give "
            "observations as arrays of token ids"
        )


class ChatRenderer:
    """Renderer by a chat template."""

    def __init__(self, conversation: Conversation, text: Any, vocab_size: int) -> None:
        self._conversation, self._text = conversation, text
        self.stop_ids, self.notes = conversation.stop_ids, conversation.notes
        self.stops = conversation.stops
        self._vocab_size = vocab_size

    def first(self, observation: Observation, tools: Sequence[ToolSpec]) -> NDArray[np.int32]:
        if isinstance(observation, np.ndarray):
            return _within(observation, self._vocab_size)
        try:
            first = self._conversation.first(messages_of(observation), described_tools(tools))
            return _within(first, self._vocab_size)
        except ChatRefused as error:
            raise UnencodableObservation(
                f"the chat template refuses the first observation: {error}"
            ) from None

    def parse(self, tokens: Sequence[int]) -> ParsedTurn:
        return self._conversation.parse(np.asarray(tokens, np.int32))

    def after(
        self,
        before: Messages,
        turn: ParsedTurn,
        results: Sequence[ToolResult],
        observation: Observation,
        tools: Sequence[ToolSpec],
    ) -> tuple[Continuation, Messages]:
        if isinstance(observation, np.ndarray):
            return Given(_within(observation, self._vocab_size)), ()
        own = messages_of(observation)
        if not any(message["role"] == "tool" for message in own):
            own = (*answers(results), *own)
        if not self._conversation.takes_results:
            own = _as_users(own)
        said = (turn.message, *own)
        if not own:
            return Given(NOTHING), said
        try:
            following = self._conversation.after(before, turn, own, described_tools(tools))
        except (ChatRefused, ConfigError) as error:
            raise UnencodableObservation(
                f"the chat template refuses what follows: {error}"
            ) from None
        match following:
            case Given(tokens):
                return Given(_within(tokens, self._vocab_size)), said
            case NewSequence(prompt):
                return following._replace(prompt=_within(prompt, self._vocab_size)), said

    def text(self, tokens: Any) -> str:
        text: str = self._text(tokens)
        return text


def renderer_of(run: RunConfig, tools: Sequence[ToolSpec]) -> PromptRenderer:
    """Build the renderer of a run's policy.

    Args:
        tools: of its environment: templates are proved with them.

    Raises:
        ConfigError: the chat template is of no use here, or the model's vocabulary is too small.
    """
    data, _ = resolved(run)
    if not data.tokenizer:
        return TokenRenderer(run.model.vocab_size)
    tokenizer, environment = open_tokenizer(data), run.environment
    conversation = conversation_of(
        tokenizer,
        tools=described_tools(tools),
        tool_format=environment.tool_format,
        thinking=environment.thinking,
        unstable=environment.unstable_template,
        options=environment.template_options,
    )
    num_ids, rows = conversation.vocab_size, run.model.vocab_size
    if ids_without_row(data.tokenizer, num_ids, conversation.stop_ids, run.model):
        conversation.notes += (about_ids(data.tokenizer, num_ids, rows),)
    return ChatRenderer(conversation, tokenizer.text, rows)


def messages_of(observation: Observation) -> tuple[Message, ...]:
    """Messages of an observation: a text is one user message; token ids are none."""
    if isinstance(observation, np.ndarray) or is_empty(observation):
        return ()
    if isinstance(observation, str):
        return (Message(role="user", content=observation),)
    return tuple(observation)  # type: ignore[arg-type]


def described_tools(tools: Sequence[ToolSpec]) -> tuple[Mapping[str, Any], ...]:
    return tuple(described(each.name, each.description, each.parameters) for each in tools)


def _as_users(messages: Messages) -> tuple[Message, ...]:
    """Turn tool results into user messages, for chat templates without a role for them (Gemma's).

    What the user says besides is joined to them: roles alternate there.
    """
    results = [message["content"] for message in messages if message["role"] == "tool"]
    others = [message for message in messages if message["role"] != "tool"]
    if not results:
        return tuple(messages)
    if others and others[0]["role"] == "user":
        results.append(others.pop(0)["content"])
    return (Message(role="user", content="\n".join(results)), *others)


def _within(tokens: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    outside = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if len(outside):
        raise UnencodableObservation(
            f"token {outside[0]} of an observation; the vocabulary is 0..{vocab_size - 1}"
        )
    return tokens.astype(np.int32)
