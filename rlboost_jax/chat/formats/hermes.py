"""Hermes and Qwen: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`, any number of them."""

from typing import Final

from rlboost_jax.chat.formats.objects import TurnParts, after_spaces, broken, call_of, decoded
from rlboost_jax.environments.protocol import ToolCall

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


def parse(text: str) -> TurnParts:
    """Parse a turn.

    A mark inside a JSON string closes nothing. A complete object is a complete call, even if its
    closing mark is missing.
    """
    kept, calls, at = [], [], 0
    while (start := text.find(OPEN, at)) >= 0:
        kept.append(text[at:start])
        call, at = _call(text, start + len(OPEN))
        calls.append(call)
        if call.problem:
            kept.append(text[start:at])
    kept.append(text[at:])
    return TurnParts("".join(kept).strip(), tuple(calls))


def _call(text: str, start: int) -> tuple[ToolCall, int]:
    """Parse the call whose opening mark ends at `start`; also returns where the text goes on."""
    found = decoded(text, after_spaces(text, start))
    if not found.problem:
        end = after_spaces(text, found.end)
        if text.startswith(CLOSE, end):
            return call_of(found.value), end + len(CLOSE)
        if end == len(text) or text.startswith(OPEN, end):
            return call_of(found.value), end
    close = text.find(CLOSE, start)
    end = len(text) if close < 0 else close + len(CLOSE)
    if close < 0:
        return broken(f"{OPEN} is not closed; {found.problem or 'more follows its object'}"), end
    return broken(found.problem or f"more than one object before {CLOSE}"), end
