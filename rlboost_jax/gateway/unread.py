"""Fields of a request that nothing here reads, by the names that an answer lists them by."""

from collections.abc import Collection, Mapping
from typing import Any, Final

UNSET: Final[tuple[Any, ...]] = (None, [], {}, "")
MOST_LISTED: Final = 100  # names, and characters of each
THINKING: Final = ("reasoning_content", "reasoning")  # vLLM's names of it
_EVERY: Final = ("role", "content")
_OF_ROLE: Final[Mapping[str, tuple[str, ...]]] = {
    "assistant": (*_EVERY, "tool_calls", "function_call", *THINKING),
    "tool": (*_EVERY, "tool_call_id", "name"),
}


def unread(value: Any, known: Collection[str], place: str = "") -> tuple[str, ...]:
    """Return the names of an object's fields that say something and are not known, in its order.

    Args:
        place: put before each of them, such as "tools.".
    """
    if not isinstance(value, dict):
        return ()
    names = (name for name, given in value.items() if given not in UNSET and name not in known)
    return tuple(f"{place}{name}"[:MOST_LISTED] for name in names)[:MOST_LISTED]


def unread_of_messages(messages: Any) -> tuple[str, ...]:
    """List the unread fields of a call's messages and their parts, each name once.

    Their kinds are checked elsewhere.
    """
    found: dict[str, None] = {}
    for message in _objects(messages):
        known = _OF_ROLE.get(str(message.get("role")), _EVERY)
        found |= dict.fromkeys(unread(message, known, "messages."))
        for part in _objects(message.get("content")):
            found |= dict.fromkeys(unread(part, ("type", "text"), "messages.content."))
        for call in _objects(message.get("tool_calls")):
            place, known = "messages.tool_calls.", ("id", "type", "function", "index")
            found |= dict.fromkeys(unread(call, known, place))
            function = unread(call.get("function"), ("name", "arguments"), f"{place}function.")
            found |= dict.fromkeys(function)
    return tuple(found)[:MOST_LISTED]


def unread_of_tools(tools: Any) -> tuple[str, ...]:
    """List the unread fields of a call's tools, each name once; schemas go to the template."""
    found: dict[str, None] = {}
    for tool in _objects(tools):
        found |= dict.fromkeys(unread(tool, ("type", "function"), "tools."))
        known = ("name", "description", "parameters")
        found |= dict.fromkeys(unread(tool.get("function"), known, "tools.function."))
    return tuple(found)[:MOST_LISTED]


def _objects(value: Any) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
