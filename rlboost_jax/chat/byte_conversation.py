"""The chat form of the tokenizer "bytes": a mark for each role, bytes, an end.

    <begin> <user>3 + 4?<end> <assistant> 7<end> <user>right<end> <assistant>

Marks are ids above those of bytes, so that no text can make one. Nothing in a turn changes what
stood before it, so there is nothing to prove. Tools are not described: a model that is made from
scratch learns what it may call from what is rewarded.
"""

import json
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.chat.conversation import (
    Given,
    ParsedTurn,
    Tools,
)
from rlboost_jax.chat.formats import hermes
from rlboost_jax.chat.formats.format_choice import CallFormat, parser_of
from rlboost_jax.chat.thinking import THINK
from rlboost_jax.chat.turn_reader import TurnReader
from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.data.tokenizers import ByteTokenizer
from rlboost_jax.environments.protocol import Message

ROLES: Final = {
    "system": ByteTokenizer.SYSTEM,
    "user": ByteTokenizer.USER,
    "assistant": ByteTokenizer.ASSISTANT,
    "tool": ByteTokenizer.TOOL,
}


class ByteConversation:
    def __init__(
        self, tokenizer: ByteTokenizer, *, tools: Tools = (), tool_format: CallFormat = "hermes"
    ) -> None:
        self.stop_ids, self.stops = tokenizer.stop_ids, tokenizer.stop_strings.table
        self.vocab_size = ByteTokenizer.TOOL + 1
        self.tool_format: str = tool_format
        self.takes_results = True
        self.notes: tuple[str, ...] = (
            f"tool calls are read as {tool_format}; tools are not described in prompts",
        )
        self._tools = tools
        self._reader = TurnReader(
            lambda ids: tokenizer.decode(ids),
            stop_ids=self.stop_ids,
            stop_strings=tokenizer.stop_strings,
            special=(),
            parser=parser_of(tool_format),
            marks=THINK,
            opened=False,
            calls_in_text=True,
        )

    def first(self, messages: Sequence[Message], tools: Tools | None = None) -> NDArray[np.int32]:
        return np.array([ByteTokenizer.BEGIN, *_written(messages)], np.int32)

    def after(
        self,
        before: Sequence[Message],
        turn: ParsedTurn,
        new: Sequence[Message],
        tools: Tools | None = None,
    ) -> Given:
        end = () if turn.stop is not None else (ByteTokenizer.END,)
        return Given(np.array([*end, *_written(new)], np.int32))

    def parse(self, tokens: ArrayLike, tools: Tools | None = None) -> ParsedTurn:
        return self._reader.read(tokens, self._tools if tools is None else tools)


def _written(messages: Sequence[Message]) -> list[int]:
    """Token ids of messages, then the mark after which the policy speaks."""
    ids: list[int] = []
    for message in messages:
        role = message.get("role", "")
        if role not in ROLES:
            raise ChatRefused(f"the tokenizer 'bytes' has no mark for the role {role!r}")
        text = message.get("content") or ""
        for call in message.get("tool_calls") or ():
            text += f"{hermes.OPEN}{json.dumps(call['function'])}{hermes.CLOSE}"
        ids += [ROLES[role], *text.encode(errors="replace"), ByteTokenizer.END]
    return [*ids, ByteTokenizer.ASSISTANT]
