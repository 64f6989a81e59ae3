"""Parsing of turns by the model's own response template, if its tokenizer has one.

That template came with the model (`tokenizer.response_template`, transformers 5.13 and later).
It reads whole turns. What it cannot read is left to the other formats, which say what is wrong.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rlboost_jax.chat.formats.objects import TurnParts, call_of, unsendable

ResponseParser = Callable[..., Mapping[str, Any]]  # transformers' `parse_response`


class ParsedResponse(NamedTuple):
    thinking: str
    found: TurnParts


def read(
    parser: ResponseParser, text: str, *, prefix: str, tools: Sequence[Mapping[str, Any]]
) -> ParsedResponse | None:
    """Parse a turn; None if the template cannot read it, or a call in it.

    Args:
        prefix: the end of the prompt, from where the turn's header begins.
    """
    try:
        message = parser(text, prefix=prefix, tools=list(tools) or None)
        calls = tuple(call_of(call["function"]) for call in message.get("tool_calls") or ())
        said = message.get("content") or ""
        thought = message.get("reasoning_content") or message.get("thinking") or ""
    except Exception:  # whatever a template of somebody's leads to
        return None
    if not isinstance(said, str) or not isinstance(thought, str):
        return None
    if any(call.problem or unsendable(call.arguments) for call in calls):
        return None
    return ParsedResponse(thought, TurnParts(said, calls))
