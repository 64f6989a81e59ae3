"""Parsing of a sampled turn into text, thinking and calls."""

import hashlib
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.chat.conversation import ParsedTurn, Tools
from rlboost_jax.chat.formats import response
from rlboost_jax.chat.formats.format_choice import Parser
from rlboost_jax.chat.formats.response import ResponseParser
from rlboost_jax.chat.thinking import Marks, split
from rlboost_jax.data.stop_strings import NO_STRINGS, StopStrings
from rlboost_jax.environments.protocol import Message, ToolCall
from rlboost_jax.sequences.endings import stopped

ID_LENGTH = 9  # characters of a call's id: Mistral's templates take no others


class TurnReader:
    """Parser of turns for one tokenizer and format.

    Args:
        text: of token ids, special tokens included.
        special: texts that are taken out of what a turn says.
        opened: prompts end within thinking.
        calls_in_text: the template writes no calls, so messages have them in their text.
        response_parser: reads turns where it can.
        prompt_end: what prompts end with.
    """

    def __init__(
        self,
        text: Callable[[NDArray[np.int32]], str],
        *,
        stop_ids: Collection[int],
        stop_strings: StopStrings = NO_STRINGS,
        special: Collection[str],
        parser: Parser,
        marks: Marks,
        opened: bool,
        calls_in_text: bool,
        response_parser: ResponseParser | None = None,
        prompt_end: str = "",
    ) -> None:
        self._text = text
        self._stop_ids, self._stop_strings = frozenset(stop_ids), stop_strings
        longest_first = sorted(special, key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._parser = parser
        self._response, self._prompt_end = response_parser, prompt_end
        self._marks, self._opened, self._in_text = marks, opened, calls_in_text

    def read(self, tokens: ArrayLike, tools: Tools) -> ParsedTurn:
        ids = np.asarray(tokens, np.int32)
        stop = int(ids[-1]) if stopped(ids, self._stop_ids) else None
        said = ids if stop is None else ids[:-1]
        written = self._stop_strings.before(said, lambda some: self._text(np.asarray(some)))
        thinking, rest = split(written, self._marks, opened=self._opened)
        found = None
        if self._response is not None:
            answer = response.read(self._response, written, prefix=self._prompt_end, tools=tools)
            if answer is not None:
                thinking, found = answer
        found = found or self._parser(rest, tools)
        thinking = self._special.sub("", thinking).strip()
        text = self._special.sub("", found.text).strip()
        calls = tuple(_with_id(call, ids, place) for place, call in enumerate(found.calls))
        return ParsedTurn(
            text=text,
            thinking=thinking,
            calls=calls,
            message=message_of(rest, thinking, ())
            if self._in_text
            else message_of(text, thinking, calls),
            stop=stop,
        )


def message_of(text: str, thinking: str, calls: Sequence[ToolCall]) -> Message:
    """Turn as a message for chat templates. Broken calls are part of its text."""
    message = Message(role="assistant", content=text)
    if thinking:
        message["reasoning_content"] = thinking
    whole = [call for call in calls if not call.problem]
    if whole:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": dict(call.arguments)},
            }
            for call in whole
        ]
    return message


def _with_id(call: ToolCall, tokens: NDArray[np.int32], place: int) -> ToolCall:
    """Call with an id made from the sampled tokens: reading the turn again gives the same."""
    if call.id:
        return call
    named = hashlib.sha256(place.to_bytes(4, "little") + tokens.astype("<i4").tobytes())
    return replace(call, id=named.hexdigest()[:ID_LENGTH])
