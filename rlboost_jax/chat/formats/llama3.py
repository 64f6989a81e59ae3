"""Llama 3: a turn that is `{"name": …, "parameters": {…}}`, several joined by `;`.

After `<|python_tag|>` comes the same, or `name.call(key="value", …)`, or a program, which is a
call of the tool `python` with the argument `code`.
"""

import re
from typing import Final

from rlboost_jax.chat.formats.objects import (
    TurnParts,
    after_spaces,
    broken,
    call_of,
    decoded,
    is_call,
)
from rlboost_jax.environments.protocol import ToolCall

PYTHON_TAG: Final = "<|python_tag|>"
PYTHON: Final = "python"
_BUILT_IN: Final = re.compile(r"([A-Za-z_]\w*)\.call\(")
_KEY: Final = re.compile(r"\s*([A-Za-z_]\w*)=(?=\")")


def parse(text: str) -> TurnParts:
    before, tag, rest = text.partition(PYTHON_TAG)
    if not tag:
        stripped = text.strip()
        if not stripped.startswith("{"):
            return TurnParts(stripped, ())
        return _objects(stripped, "")
    rest = rest.strip()
    if rest.startswith("{"):
        found = _objects(rest, before.strip())
        if found.calls:
            return found
    if match := _BUILT_IN.match(rest):
        call = _built_in(rest, match)
        return TurnParts((text if call.problem else before).strip(), (call,))
    return TurnParts(before.strip(), (ToolCall(name=PYTHON, arguments={"code": rest}),))


def _objects(text: str, before: str) -> TurnParts:
    """Parse the calls that a text consists of from its first character on."""
    calls: list[ToolCall] = []
    at = 0
    while at < len(text):
        found = decoded(text, at)
        if found.problem or not is_call(found.value):
            if not calls and not ('"name"' in text and found.problem):
                return TurnParts(f"{before}\n{text}".strip(), ())  # an answer in JSON
            calls.append(broken(found.problem or "no call: it has no name and parameters"))
            return TurnParts(f"{before}\n{text[at:]}".strip(), tuple(calls))
        calls.append(call_of(found.value))
        at = after_spaces(text, found.end)
        if at < len(text) and text[at] == ";":
            at = after_spaces(text, at + 1)
        elif at < len(text) and text[at] != "{":
            return TurnParts(f"{before}\n{text[at:]}".strip(), tuple(calls))
    return TurnParts(before, tuple(calls))


def _built_in(text: str, match: re.Match[str]) -> ToolCall:
    """Parse `name.call(key="value", …)`."""
    name, at = match[1], match.end()
    arguments: dict[str, object] = {}
    while not text.startswith(")", at):
        key = _KEY.match(text, at)
        value = decoded(text, key.end()) if key else None
        if key is None or value is None or value.problem or key[1] in arguments:
            return broken(f"no call: {text[at : at + 60]!r}", name)
        arguments[key[1]] = value.value
        at = after_spaces(text, value.end)
        if text.startswith(",", at):
            at = after_spaces(text, at + 1)
        elif not text.startswith(")", at):
            return broken(f"no call: {text[at : at + 60]!r}", name)
    return ToolCall(name=name, arguments=arguments)
