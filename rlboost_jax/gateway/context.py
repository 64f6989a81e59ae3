"""Tokens of a session: what the policy has read and sampled, and what comes next.

Nothing that was sampled is ever decoded and encoded again: what a call adds goes behind it, as the
chat template writes it. A conversation that cannot go on so begins another sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.chat.conversation import Continuation, Given, NewSequence, ParsedTurn
from rlboost_jax.environments.observations import is_beyond
from rlboost_jax.environments.protocol import Message
from rlboost_jax.gateway.api_errors import CONTEXT_FULL, ApiError, invalid
from rlboost_jax.gateway.client_calls import Call, ChatCall
from rlboost_jax.gateway.gateway_session import Ask
from rlboost_jax.messages import pack_tokens, unpack_tokens
from rlboost_jax.sequences.transcript import Transcript


class Chat(Protocol):
    """Part of `rlboost_jax.chat.conversation.Conversation` that is needed here."""

    stop_ids: tuple[int, ...]

    def first(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> NDArray[np.int32]: ...

    def after(
        self,
        before: Sequence[Message],
        turn: ParsedTurn,
        new: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> Continuation: ...

    def parse(self, tokens: ArrayLike) -> ParsedTurn: ...


@dataclass(frozen=True, kw_only=True)
class Context:
    """One sequence up to where the policy speaks.

    Attributes:
        number: of the sequence in its episode.
        transcript: never changed in place: after a turn that fails, the one before it counts.
        messages: before the newest turn, the policy's own as they were parsed; None where token
            ids alone are known.
        turn: the newest; None: there is none.
    """

    number: int
    transcript: Transcript
    messages: tuple[Message, ...] | None = None
    turn: ParsedTurn | None = None

    @property
    def tokens(self) -> tuple[int, ...]:
        """All token ids, the prompt's included."""
        return tuple(unpack_tokens(self.transcript.between(0, self.transcript.length)).tolist())

    def with_given(self, tokens: ArrayLike) -> "Context":
        """Append what follows a turn; nothing if the turn continues."""
        data, transcript = pack_tokens(tokens), self.transcript.copy()
        if not data:
            return self
        transcript.give(data)
        return replace(self, transcript=transcript, turn=None)

    def with_sampled(self, tokens: ArrayLike, turn: ParsedTurn) -> "Context":
        """Append a turn, or the rest of one that was cut off."""
        transcript = self.transcript.copy()
        transcript.append(pack_tokens(tokens))
        return replace(self, transcript=transcript, turn=turn)


def ahead_of(context: Context | None, ask: Ask, chat: Chat) -> Context:
    """Sequence that a turn is sampled after.

    Args:
        context: up to the newest turn; None: there is none.

    Raises:
        ChatRefused: the template does not take these messages.
    """
    number = 0 if context is None else context.number + 1
    call = ask.call
    if not isinstance(call, ChatCall):
        if ask.begins or context is None:
            return _begun(number, call.tokens)
        return replace(context.with_given(ask.given), messages=None)
    tools = call.tools or None
    if not (ask.begins or context is None or context.turn is None or context.messages is None):
        before = context.messages
        messages = (*before, context.turn.message, *ask.new)
        match chat.after(before, context.turn, ask.new, tools):
            case Given(tokens):
                return replace(context.with_given(tokens), messages=messages)
            case NewSequence(prompt):
                return _begun(number, prompt, messages)
    return _begun(number, chat.first(call.messages, tools), call.messages)


def check_length(call: Call, slot_tokens: int) -> None:
    """Raise ApiError for messages that are longer than any context, before they are tokenised.

    For 16 MB that takes seconds, in which no other call is handled.
    """
    if isinstance(call, ChatCall) and is_beyond([call.messages], slot_tokens):
        raise _full("far more tokens than fit", slot_tokens)


def room_for(context: Context, slot_tokens: int, *, asked: int | None, most: int) -> int:
    """Number of tokens that a turn may have.

    Args:
        asked: by the call.
        most: by the gateway; 0: no limit of its own.

    Raises:
        ApiError: there is room for none.
    """
    length = context.transcript.length
    room = slot_tokens - length
    if room < 1:
        raise _full(f"{length} tokens", slot_tokens)
    return min(room, asked or room, most or room)


def _full(tokens: str, slot_tokens: int) -> ApiError:
    return invalid(
        f"the conversation has {tokens}; this model's maximum context length is {slot_tokens}, "
        "with the response",
        "messages",
        code=CONTEXT_FULL,
    )


def _begun(number: int, prompt: ArrayLike, messages: tuple[Message, ...] | None = None) -> Context:
    return Context(number=number, transcript=Transcript(pack_tokens(prompt)), messages=messages)
