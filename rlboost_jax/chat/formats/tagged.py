"""Qwen3-Coder's and GLM's marks around each argument in place of JSON.

    <tool_call><function=add><parameter=a>3</parameter></function></tool_call>
    <tool_call>add<arg_key>a</arg_key><arg_value>3</arg_value></tool_call>

A value is text. It is read as JSON where the tool's schema says that the argument is no string,
or, for a tool without a schema, never.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rlboost_jax.chat.formats.objects import TurnParts, broken, decoded
from rlboost_jax.environments.protocol import ToolCall

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"
FUNCTION: Final = "<function="
KEY: Final = "<arg_key>"


def parse(text: str, tools: Sequence[Mapping[str, Any]] = ()) -> TurnParts:
    """Parse calls between `<tool_call>` and `</tool_call>`, with arguments in either form."""
    kept, calls, at = [], [], 0
    while (start := text.find(OPEN, at)) >= 0:
        kept.append(text[at:start])
        end = text.find(CLOSE, start)
        body = text[start + len(OPEN) : end if end >= 0 else len(text)]
        at = end + len(CLOSE) if end >= 0 else len(text)
        call = broken(f"{OPEN} is not closed") if end < 0 else _call(body.strip(), tools)
        calls.append(call)
        if call.problem:
            kept.append(text[start:at])
    kept.append(text[at:])
    return TurnParts("".join(kept).strip(), tuple(calls))


def _call(body: str, tools: Sequence[Mapping[str, Any]]) -> ToolCall:
    if body.startswith(FUNCTION):
        name, mark, rest = body[len(FUNCTION) :].partition(">")
        rest, mark, _ = rest.partition("</function>")
        pairs = _pairs(rest, "<parameter=", ">", "</parameter>")
        problem = "" if mark else f"{FUNCTION}{name[:60]}> is not closed"
    else:
        name, mark, rest = body.partition(KEY)
        pairs, problem = _pairs(mark + rest, KEY, "</arg_key>", "</arg_value>"), ""
    name = name.strip()
    if not name or len(name.split()) > 1 or "<" in name:
        return broken(f"the call has no name: {body[:60]!r}")
    arguments: dict[str, Any] = {}
    types = _types(name, tools)
    for key, value in pairs:
        if value is None or key in arguments:
            problem = problem or (
                f"the argument {key[:60]!r} " + ("is not closed" if value is None else "is twice")
            )
            break
        arguments[key] = _typed(value, types.get(key, ()))
    return broken(problem, name) if problem else ToolCall(name=name, arguments=arguments)


def _pairs(text: str, before: str, between: str, after: str) -> Iterable[tuple[str, str | None]]:
    """Names and values of arguments; None for a value without an end."""
    at = 0
    while (start := text.find(before, at)) >= 0:
        middle = text.find(between, start)
        end = text.find(after, middle) if middle >= 0 else -1
        if end < 0:
            yield text[start + len(before) : start + len(before) + 60], None
            return
        value = text[middle + len(between) : end].strip("\n")
        value = value.strip().removeprefix("<arg_value>") if before == KEY else value
        yield text[start + len(before) : middle].strip(), value
        at = end + len(after)


def _types(name: str, tools: Sequence[Mapping[str, Any]]) -> dict[str, tuple[str, ...]]:
    """JSON types of a tool's arguments, as far as its schema is known and gives them."""
    for tool in tools:
        function = tool.get("function", tool)
        if function.get("name") == name:
            properties = (function.get("parameters") or {}).get("properties") or {}
            kinds = {key: (schema or {}).get("type") for key, schema in properties.items()}
            return {
                key: (kind,) if isinstance(kind, str) else tuple(kind)
                for key, kind in kinds.items()
                if kind
            }
    return {}


def _typed(value: str, types: tuple[str, ...]) -> Any:
    if not types or "string" in types:
        return value
    found = decoded(value.strip(), 0)
    return value if found.problem or found.end < len(value.strip()) else found.value
