"""Conversion between messages and token ids: prompts, continuations, and parsed turns.

    conversation = conversation_of(tokenizer, tools=…)    # chat/conversation_setup.py; once per run
    prompt = conversation.first(messages)
    turn = conversation.parse(sampled)
    match conversation.after(messages, turn, new):
        case Given(tokens):       # the next prompt: prompt + sampled + tokens
        case NewSequence(prompt): # the next prompt, of a sequence of its own

A turn's tokens are never decoded and encoded again to make a prompt of them. What follows them
is the template's own text from the end of the turn to where the policy speaks next.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.environments.protocol import Message, ToolCall, ToolResult
from rlboost_jax.platform.mistakes import ConfigError

Tools = Sequence[Mapping[str, Any]]  # as OpenAI's protocol has them, see `described`


class UnstableTemplate(ConfigError):
    """A template renders earlier messages differently once more messages follow."""


class Given(NamedTuple):
    """Tokens that the policy reads after its turn, up to where it speaks again."""

    tokens: NDArray[np.int32]


class NewSequence(NamedTuple):
    """The turn cannot be continued: this prompt begins another sequence of the same episode."""

    prompt: NDArray[np.int32]
    retokenised: int  # tokens of it that stand for earlier turns of the policy, at most
    reason: str


Continuation = Given | NewSequence


@dataclass(frozen=True, kw_only=True)
class ParsedTurn:
    """Content of a sampled turn.

    Attributes:
        text: without special tokens, thinking and calls.
        thinking: what stood between the marks for it; "" without any.
        calls: in order. A broken one has a `problem`; its arguments are empty.
        message: the turn as a message, for `before` of later turns and for records.
        stop: the id that ended it; None: it was cut off, or a stop string ended it.
    """

    text: str
    thinking: str
    calls: tuple[ToolCall, ...]
    message: Message
    stop: int | None


@runtime_checkable
class Conversation(Protocol):
    """Made once per run; has no state, so that all episodes share it.

    Attributes:
        stop_ids: end a turn.
        stops: of the stop strings, which end one, too.
        vocab_size: ids are below this.
        tool_format: how calls are written, see `chat/formats`.
        notes: a line for each thing to know of tokenizer and template.
        takes_results: there is a role for results of tools.
    """

    stop_ids: tuple[int, ...]
    stops: bytes
    vocab_size: int
    tool_format: str
    notes: tuple[str, ...]
    takes_results: bool

    def first(self, messages: Sequence[Message], tools: Tools | None = None) -> NDArray[np.int32]:
        """Render a prompt: [T] token ids of the messages, up to where the policy speaks.

        Args:
            tools: that the policy may call; None: those of `conversation_of`.

        Raises:
            ChatRefused: the template does not take these messages.
        """
        ...

    def after(
        self,
        before: Sequence[Message],
        turn: ParsedTurn,
        new: Sequence[Message],
        tools: Tools | None = None,
    ) -> Continuation:
        """Render what follows a turn.

        Args:
            before: all messages before the turn; earlier turns by their `ParsedTurn.message`.
            new: messages after it, none of the policy's own.

        Raises:
            ChatRefused: the template does not take these messages.
            UnstableTemplate: it writes `before` in another way once `new` follows, and
                `environment.unstable_template` is "refuse".
        """
        ...

    def parse(self, tokens: ArrayLike, tools: Tools | None = None) -> ParsedTurn:
        """Read a turn; never raises, whatever was sampled.

        Args:
            tokens: [N] that were sampled, a stop id at their end included.
            tools: see `first`; some formats read arguments by their schemas.
        """
        ...


def answers(results: Sequence[ToolResult]) -> list[Message]:
    """Messages that give the results of a turn's calls to the policy."""
    return [
        Message(
            role="tool", name=result.call.name, tool_call_id=result.call.id, content=result.content
        )
        for result in results
    ]


def described(name: str, description: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a tool as OpenAI's protocol and chat templates have it.

    Args:
        parameters: JSON schema of the arguments.
    """
    function = {"name": name, "description": description, "parameters": dict(parameters)}
    return {"type": "function", "function": function}
