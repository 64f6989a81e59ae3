"""Conversations of rows in the form of chat templates: from OpenAI's messages or ShareGPT's turns.

All that a message says goes to the template. Contents in parts become text, arguments of calls
become objects, and a turn of ShareGPT becomes a message; what is no text, or of an unknown role, is
refused by its place.
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rlboost_jax.data.columns import decoded
from rlboost_jax.data.row import BrokenRow
from rlboost_jax.settings.foreign_keys import report_unknown, unknown_keys, warn_once

Message = Mapping[str, Any]
Tools = tuple[Mapping[str, Any], ...]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
# What others call them, in any case: ShareGPT's tags and those of trainers that read it, and of
# OpenAI's protocol before it had tools.
TAGS: Final[Mapping[str, str]] = {
    **{role: role for role in ROLES},
    "human": "user",
    **dict.fromkeys(("gpt", "model", "chatgpt", "bing", "bard"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("observation", "tool_response", "function", "ipython"), "tool"),
}
CALL_TAGS: Final = ("function_call", "tool_call")  # what such a turn says are calls
TEXT_PARTS: Final = ("text", "input_text", "output_text")
PICTURES: Final = ("image", "images", "audio", "audios", "video", "videos")
READ: Final = ("role", "content", "tool_call_id")  # of a message, whether its template does or not

# Columns that belong to the conversations of other trainers' rows.
BESIDE: Final = ("tools", "functions", "system", *PICTURES)

_CALL: Final = ("id", "type", "index", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")  # of a call, as others have them
_FUNCTION: Final = ("name", "description", "parameters", "strict", "return", "returns")
_SCHEMAS: Final = ("input_schema", "inputSchema")  # parameters, as Anthropic and MCP call them


def conversation_in(value: Any, place: str, *, table: bool = False) -> list[Message]:
    """Messages of a column up to where the policy speaks.

    Assistants' messages at the end are the solution and left out.

    Args:
        place: the column.
        table: None stands for what a row lacks, however deep.

    Raises:
        BrokenRow: no conversation, or one with something else than text.
    """
    return all_messages_in(value, place, table=table, to_policy=True)


def all_messages_in(
    value: Any, place: str, *, table: bool = False, to_policy: bool = False
) -> list[Message]:
    """Messages of a column, the solution included.

    Args:
        to_policy: only up to where the policy speaks, see `conversation_in`.

    Raises:
        BrokenRow: no conversation, or one with something else than text.
    """
    turns = _list(value, place, table=table)
    roles = [_role(turn, f"{place}[{index}]") for index, turn in enumerate(turns)]
    while to_policy and roles and roles[-1] == "assistant":
        roles.pop()
    return [_message(turns[index], role, f"{place}[{index}]") for index, role in enumerate(roles)]


def tools_in(value: Any, place: str, *, table: bool = False) -> Tools:
    """Functions that the policy may call, as OpenAI's protocol has them; none for no value.

    Raises:
        BrokenRow: something else than functions.
    """
    if value is None or value == "":
        return ()
    if isinstance(value, str) and (value := decoded(value, place)) is None:
        return ()
    tools = _list(value, place, table=table)
    return tuple(_tool(tool, f"{place}[{index}]") for index, tool in enumerate(tools))


def with_text_arguments(messages: Iterable[Message]) -> list[Message]:
    """Convert arguments of calls to JSON text, which some templates require."""
    return [
        {**message, "tool_calls": [_in_text(call) for call in message["tool_calls"]]}
        if "tool_calls" in message
        else message
        for message in messages
    ]


def more_of(message: Message) -> dict[str, Any]:
    """Fields besides role and content that distinguish a message: neither ids nor weights."""
    more = {key: message[key] for key in ("name", "reasoning_content") if key in message}
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {**more, "tool_calls": calls} if calls else more


def fields_unread(messages: Iterable[Message], tools: Tools, template: str) -> set[str]:
    """Fields of a conversation that a chat template's text never names, so they go unread."""
    names = {key for message in messages for key in unknown_keys(message, READ)}
    return {name for name in names | ({"tools"} if tools else set()) if not reads(template, name)}


def report_beside(unused: Iterable[str]) -> None:
    """Warn once about columns that belong to conversations and are not read.

    Args:
        unused: columns of the rows.
    """
    if names := [repr(name) for name in unused if name in BESIDE]:
        warn_once(
            f"data.source has {', '.join(names)}, and no prompt has what is in there; "
            "data.tools_column names tools, and all else must stand in the prompt itself"
        )


def reads(template: str, name: str) -> bool:
    """Whether a chat template's text contains a name."""
    return re.search(rf"\b{re.escape(name)}\b", template) is not None


def _list(value: Any, place: str, *, table: bool) -> list[Any]:
    if isinstance(value, str):
        value = decoded(value, place)
    elif table:
        value = _without_nulls(value)
    if isinstance(value, Mapping) and ("role" in value or "from" in value):
        value = _transposed(value, place)
    if not isinstance(value, list | tuple):
        raise BrokenRow(f"{place!r} is {_shown(value)}, and no list")
    return list(value)


def _transposed(lists: Mapping[str, Any], place: str) -> list[Any]:
    """Convert an object of lists, which `datasets` makes of a list of objects, back to that."""
    lengths = {len(each) if isinstance(each, list | tuple) else -1 for each in lists.values()}
    if len(lengths) != 1 or -1 in lengths:
        raise BrokenRow(f"{place!r} is {_shown(lists)}, and no list")
    return [dict(zip(lists, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def _role(turn: Any, place: str) -> str:
    if not isinstance(turn, Mapping):
        raise BrokenRow(f"{place} is {_shown(turn)}, and no message")
    name = "role" if turn.get("role") is not None else "from"
    if (tag := turn.get(name)) is None:
        raise BrokenRow(f"{place} has neither 'role' nor 'from'")
    role = TAGS.get(tag.lower()) if isinstance(tag, str) else None
    if role is None:
        raise BrokenRow(f"{place}.{name} is {_shown(tag)}; known: {', '.join(TAGS)}")
    return role


def _message(turn: Mapping[str, Any], role: str, place: str) -> Message:
    said = {key: value for key, value in turn.items() if value is not None and value != []}
    if pictures := [name for name in PICTURES if name in said]:
        raise BrokenRow(f"{place}.{pictures[0]} is no text, and prompts are text alone")
    by = "role" if "role" in said else "from"
    tag = said.pop(by).lower()
    usual, other = ("content", "value") if by == "role" else ("value", "content")
    name = other if usual not in said and other in said else usual
    content = said.pop(name, None)
    if tag in CALL_TAGS:
        calls = decoded(content, f"{place}.{name}") if isinstance(content, str) else content
        said["tool_calls"], content = calls if isinstance(calls, list) else [calls], ""
    if "function_call" in said:  # of the protocol before it had tools
        said.setdefault("tool_calls", [said.pop("function_call")])
    if "tool_calls" in said:
        said["tool_calls"] = _calls(said["tool_calls"], f"{place}.tool_calls")
    if content is None and role == "assistant" and said:
        content = ""
    return {"role": role, "content": _content(content, role, f"{place}.{name}"), **said}


def _content(value: Any, role: str, place: str) -> Any:
    if isinstance(value, str) or (role == "tool" and isinstance(value, Mapping)):
        return value  # templates write a result that is an object as they like
    if isinstance(value, list | tuple):
        return "".join(_part(part, f"{place}[{index}]") for index, part in enumerate(value))
    raise BrokenRow(f"{place} is {_shown(value)}, and no text")


def _part(part: Any, place: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise BrokenRow(f"{place} is {_shown(part)}, and no part of text")
    kind = part.get("type", "text")
    if kind not in TEXT_PARTS:
        raise BrokenRow(f"{place} is of type {_shown(kind)}, and prompts are text alone")
    if not isinstance(part.get("text"), str):
        raise BrokenRow(f"{place}.text is {_shown(part.get('text'))}, and no text")
    report_unknown(part, ("type", "text"), "parts of messages")
    return str(part["text"])


def _calls(value: Any, place: str) -> list[Mapping[str, Any]]:
    calls = decoded(value, place) if isinstance(value, str) else value
    if isinstance(calls, Mapping) and ("function" in calls or "name" in calls):
        calls = [calls]
    if not isinstance(calls, list | tuple):
        raise BrokenRow(f"{place} is {_shown(calls)}, and no list of calls")
    return [_call(call, f"{place}[{index}]") for index, call in enumerate(calls)]


def _call(call: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(call, Mapping):
        raise BrokenRow(f"{place} is {_shown(call)}, and no call of a function")
    if isinstance(call.get("function"), Mapping):
        report_unknown(call, _CALL, "tool_calls of messages")
        function, rest, place = call["function"], call, f"{place}.function"
    else:  # the function alone
        function, rest = call, {}
    if not isinstance(function.get("name"), str):
        raise BrokenRow(f"{place}.name is {_shown(function.get('name'))}, and no name")
    named = next((name for name in _ARGUMENTS if function.get(name) is not None), "arguments")
    report_unknown(function, ("name", named, *(() if rest else _CALL)), "calls of messages")
    arguments = _arguments(function.get(named), f"{place}.{named}")
    made = {key: value for key, value in rest.items() if value is not None}
    return {
        **made,
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _arguments(value: Any, place: str) -> Mapping[str, Any]:
    """Decode arguments of a call; without any, an empty object."""
    if isinstance(value, str):
        value = decoded(value, place) if value.strip() else {}
    value = {} if value is None else value
    if not isinstance(value, Mapping):
        raise BrokenRow(f"{place} is {_shown(value)}, and no JSON object")
    return value


def _in_text(call: Mapping[str, Any]) -> Mapping[str, Any]:
    function = call["function"]
    arguments = json.dumps(function["arguments"], ensure_ascii=False)
    return {**call, "function": {**function, "arguments": arguments}}


def _tool(tool: Any, place: str) -> Mapping[str, Any]:
    if isinstance(tool, str):  # as tables have them whose columns are of one type
        tool = decoded(tool, place)
    if not isinstance(tool, Mapping):
        raise BrokenRow(f"{place} is {_shown(tool)}, and no function")
    if isinstance(tool.get("function"), Mapping):
        if tool.get("type", "function") != "function":
            raise BrokenRow(f"{place}.type is {_shown(tool['type'])}, and no function")
        report_unknown(tool, ("type", "function"), "tools of rows")
        function, place = tool["function"], f"{place}.function"
    else:  # the function alone
        function = tool
    if not isinstance(function.get("name"), str):
        raise BrokenRow(f"{place}.name is {_shown(function.get('name'))}, and no name")
    if name := next((name for name in _SCHEMAS if isinstance(function.get(name), Mapping)), ""):
        function = {"parameters" if key == name else key: v for key, v in function.items()}
    report_unknown(function, (*_FUNCTION, "type"), "functions of rows")
    return {"type": "function", "function": function}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    if isinstance(value, list | tuple):
        return [_without_nulls(inner) for inner in value]
    return value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]} …"
