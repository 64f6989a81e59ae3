"""Canonical form of a conversation's messages: two with the same content are equal.

Clients write one message in many ways: text or a list of parts of it, null or "", arguments as
JSON of any spacing, fields of their own. Only what the policy reads is kept.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from rlboost_jax.chat.formats.objects import arguments_of
from rlboost_jax.environments.protocol import Message
from rlboost_jax.gateway.api_errors import invalid
from rlboost_jax.gateway.gateway_limits import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from rlboost_jax.gateway.unread import THINKING, UNSET

_TEXT_PARTS: Final = ("text", "input_text", "output_text")
ROLES: Final = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def canonical_messages(given: Any) -> tuple[Message, ...]:
    """Convert messages to canonical form.

    Args:
        given: `messages` of a call, decoded JSON.

    Raises:
        ApiError: it is no conversation that a policy can go on with.
    """
    if not isinstance(given, list) or not given:
        raise invalid("messages must be a list of at least one message", "messages")
    if len(given) > MAX_MESSAGES:
        raise invalid(f"{len(given)} messages; at most {MAX_MESSAGES} are taken", "messages")
    messages = tuple(_message(each, f"messages[{i}]") for i, each in enumerate(given))
    if messages[-1]["role"] == "assistant":
        raise invalid(
            "the last of the messages is the assistant's; turns are not continued: end with one of "
            "the user or of a tool",
            "messages",
        )
    return messages


def canonical_tools(given: Any) -> tuple[Mapping[str, Any], ...]:
    """Validate `tools`; each comes back in the form chat templates take. Raises ApiError."""
    if given is None:
        return ()
    if not isinstance(given, list):
        raise invalid("tools must be a list", "tools")
    if len(given) > MAX_TOOLS:
        raise invalid(f"{len(given)} tools; at most {MAX_TOOLS} are taken", "tools")
    return tuple(_tool(each, f"tools[{i}]") for i, each in enumerate(given))


def same(said: Message, given: Message) -> bool:
    """Whether a message that a client sends back is the one that was sampled.

    In the policy's own messages, parts that a client need not keep do not count: white space at the
    ends, thinking, ids of calls. Their tokens are known, and stay as they are.
    """
    if said["role"] != given["role"]:
        return False
    if said["role"] != "assistant":
        return said == given
    if said.get("content", "").strip() != given.get("content", "").strip():
        return False
    if given.get("reasoning_content") and given["reasoning_content"].strip() != (
        said.get("reasoning_content", "").strip()
    ):
        return False
    return _calls(said) == _calls(given)


def _calls(message: Message) -> list[tuple[str, Any]]:
    functions = [call["function"] for call in message.get("tool_calls", ())]
    return [(f["name"], arguments_of(f["arguments"])) for f in functions]


def _message(given: Any, place: str) -> Message:
    if not isinstance(given, dict):
        raise invalid(f"{place} is no object", place)
    role = given.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{place}.role is {_shown(role)}; known are {', '.join(ROLES)}", place)
    made: dict[str, Any] = {
        "role": ROLES[role],
        "content": _content(given.get("content"), f"{place}.content"),
    }
    if role == "assistant":
        if calls := given.get("tool_calls"):
            if not isinstance(calls, list) or len(calls) > MAX_PARTS:
                raise invalid(f"{place}.tool_calls is no list of calls", place)
            made["tool_calls"] = [
                _call(each, f"{place}.tool_calls[{i}]") for i, each in enumerate(calls)
            ]
        if given.get("function_call") not in UNSET:
            field = f"{place}.function_call"
            raise invalid(f"{field} is not supported; say it as tool_calls", field)
        thoughts = [_content(given.get(name), f"{place}.{name}") for name in THINKING]
        if thought := next(filter(None, thoughts), ""):
            made["reasoning_content"] = thought
    elif role == "tool":
        made["tool_call_id"] = _text(given.get("tool_call_id"), f"{place}.tool_call_id")
        if given.get("name") is not None:
            made["name"] = _text(given["name"], f"{place}.name")
    return cast(Message, made)


def _content(value: Any, place: str) -> str:
    if value is None:
        return ""
    if isinstance(value, list):
        if len(value) > MAX_PARTS:
            raise invalid(f"{place} has {len(value)} parts; at most {MAX_PARTS} are taken", place)
        return "\n".join(_part(each, place) for each in value)
    return _text(value, place)


def _part(value: Any, place: str) -> str:
    if isinstance(value, str):
        return _text(value, place)
    if not isinstance(value, dict) or value.get("type") not in _TEXT_PARTS:
        kind = value.get("type") if isinstance(value, dict) else value
        raise invalid(f"{place} has a part of type {_shown(kind)}; only text is taken", place)
    return _text(value.get("text"), f"{place}.text")


def _call(given: Any, place: str) -> dict[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict):
        raise invalid(f"{place} is no call of a function", place)
    arguments, problem = arguments_of(function.get("arguments"))
    if problem:
        field = f"{place}.function.arguments"
        raise invalid(f"{field} are {problem}; they must be an object, or its text", field)
    return {
        "id": _text(given.get("id") or "", f"{place}.id"),
        "type": "function",
        "function": {
            "name": _text(function.get("name"), f"{place}.function.name"),
            "arguments": arguments,
        },
    }


def _tool(given: Any, place: str) -> Mapping[str, Any]:
    function = given.get("function") if isinstance(given, dict) else None
    if not isinstance(function, dict) or given.get("type", "function") != "function":
        raise invalid(f"{place} is no function; only these are taken", place)
    made: dict[str, Any] = {"name": _text(function.get("name"), f"{place}.function.name")}
    if function.get("description") is not None:
        made["description"] = _text(function["description"], f"{place}.function.description")
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise invalid(f"{place}.function.parameters is no JSON schema", place)
    made["parameters"] = parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": made}


def _text(value: Any, place: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{place} is {_shown(value)}; it must be text", place)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise invalid(f"{place} has half of a surrogate pair; it must be text", place) from None
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def grown(said: Sequence[Message], given: Sequence[Message]) -> tuple[Message, ...] | None:
    """Messages added to a conversation; None if it was rewritten.

    A message of the assistant's that the policy has not said is no addition.
    """
    if len(given) <= len(said) or not all(map(same, said, given)):
        return None
    new = tuple(given[len(said) :])
    return None if any(message["role"] == "assistant" for message in new) else new
