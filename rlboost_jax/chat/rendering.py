"""Rendering of messages to text by a chat template, and encoding of that text.

What messages say is never a control token: a tool's answer that has `<|im_end|>` in it reaches
the policy as these characters, spelt by ordinary tokens. A control text in a content is cut
in two by a character that never occurs, and the pieces between cuts are encoded one by one.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.chat.conversation import Tools
from rlboost_jax.data.tokenizers import HuggingFaceTokenizer
from rlboost_jax.environments.protocol import Message

CUT: Final = "\U0010ff1d"  # of private use; where a content has it, U+FFFD takes its place


@dataclass(frozen=True, kw_only=True)
class Renderer:
    """One tokenizer and its template.

    Attributes:
        options: what the template takes besides messages, such as {"enable_thinking": False}.
        text_arguments: the template wants a call's arguments as JSON text, not as an object.
    """

    tokenizer: HuggingFaceTokenizer
    options: Mapping[str, Any] = field(default_factory=dict)
    text_arguments: bool = False
    special: tuple[str, ...] = field(init=False)  # texts of special tokens
    control: tuple[str, ...] = field(init=False)  # and of others that are marks, too

    def __post_init__(self) -> None:
        template, added = self.tokenizer.template, self.tokenizer.added
        special = tuple(text for text, is_special in added.items() if is_special)
        named = tuple(
            text
            for text, is_special in added.items()
            if not is_special
            and not text.isspace()
            and (text in template or (text[0] + text[-1]) in ("<>", "[]"))
        )
        object.__setattr__(self, "special", special)
        object.__setattr__(self, "control", special + named)
        # The policy's own turns and the run's system prompt may name <think> and <tool_call>.
        object.__setattr__(self, "_ours", _any_of(special))
        object.__setattr__(self, "_theirs", _any_of(special + named))

    def text(self, messages: Sequence[Message], tools: Tools, *, generation: bool = True) -> str:
        """Render messages as text with cuts in control texts, for `encode`.

        Raises:
            ChatRefused: the template does not take these messages.
        """
        written = self.tokenizer.chat(
            [self._cut(message) for message in messages],
            tools=[_each_text(tool, lambda text: _parted(text, self._ours)) for tool in tools],
            generation=generation,
            options=self.options,
        )
        return written.replace(_ESCAPED, CUT)

    def encode(self, text: str) -> NDArray[np.int32]:
        """Encode what `text` returned, or a part of it, as [T] token ids."""
        first, *others = text.split(CUT)
        ids = self._ids(first)
        if others:
            # After a line's end, since some tokenizers put a space before a text's first word.
            line = self._ids("\n")
            for piece in others:
                found = self._ids(f"\n{piece}")
                ids += found[len(line) :] if found[: len(line)] == line else self._ids(piece)
        return np.array(ids, np.int32)

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer.encode([text], chat=True)[0] if text else []

    def _cut(self, message: Message) -> dict[str, Any]:
        ours = message.get("role") in ("system", "assistant")
        pattern = self._ours if ours else self._theirs
        cut: dict[str, Any] = {
            key: value if key == "role" else _each_text(value, lambda text: _parted(text, pattern))
            for key, value in message.items()
        }
        if self.text_arguments and "tool_calls" in cut:
            cut["tool_calls"] = [_with_text(call) for call in cut["tool_calls"] or ()]
        return cut

    _ours: re.Pattern[str] = field(init=False, repr=False)
    _theirs: re.Pattern[str] = field(init=False, repr=False)


_ESCAPED: Final = json.dumps(CUT)[1:-1]  # what a template makes of it that writes ASCII only


def uncut(text: str) -> str:
    """Remove the cuts from a text, for people."""
    return text.replace(CUT, "")


def _any_of(texts: Collection[str]) -> re.Pattern[str]:
    """Pattern of any of these texts, longer ones first: a token goes before those inside it."""
    longest_first = sorted((t for t in texts if len(t) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _parted(text: str, control: re.Pattern[str]) -> str:
    """Insert a cut after the first character of each control text.

    The rest is searched again, since it may contain another one.
    """
    text = text.replace(CUT, "\N{REPLACEMENT CHARACTER}")
    parts, at = [], 0
    while match := control.search(text, at):
        parts.append(text[at : match.start() + 1] + CUT)
        at = match.start() + 1
    parts.append(text[at:])
    return "".join(parts)


def _each_text(value: Any, change: Callable[[str], str]) -> Any:
    """Apply a change to each text in a value; keys stay."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: _each_text(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_each_text(inner, change) for inner in value]
    return value


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = dict(call.get("function", {}))
    if not isinstance(function.get("arguments"), str):
        function["arguments"] = json.dumps(function.get("arguments", {}), ensure_ascii=False)
    return {**call, "function": function}
