"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": …}, …]`, and the later form
`[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, once for each call.

Its templates take ids of nine letters or digits only, so another one counts as none.
"""

from dataclasses import replace
from typing import Final

from rlboost_jax.chat.formats.objects import Found, after_spaces, broken, call_of, decoded
from rlboost_jax.environments.protocol import ToolCall

CALLS: Final = "[TOOL_CALLS]"
ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"


def parse(text: str) -> Found:
    first, *parts = text.split(CALLS)
    kept, calls = [first], list[ToolCall]()
    for part in parts:
        found = (
            _list(part)
            if part.lstrip()[:1] in ("[", "{") and not part.startswith((ID, ARGS))
            else _named(part)
        )
        calls.extend(map(_with_proper_id, found.calls))
        if any(call.problem for call in found.calls):
            kept.append(CALLS + part)
        else:
            kept.append(found.text)
    return Found("".join(kept).strip(), tuple(calls))


def _with_proper_id(call: ToolCall) -> ToolCall:
    proper = len(call.id) == 9 and call.id.isalnum() and call.id.isascii()
    return call if proper else replace(call, id="")


def _list(part: str) -> Found:
    found = decoded(part, after_spaces(part, 0))
    if found.problem:
        return Found("", (broken(found.problem),))
    values = found.value if isinstance(found.value, list) else [found.value]
    return Found(part[found.end :], tuple(map(call_of, values)))


def _named(part: str) -> Found:
    name, mark, written = part.partition(ARGS)
    name, _, identity = name.partition(ID)
    if not mark:
        return Found("", (broken(f"{CALLS} without a list and without {ARGS}"),))
    found = decoded(written, after_spaces(written, 0))
    if found.problem:
        return Found("", (broken(found.problem, name.strip()),))
    call = call_of({"name": name.strip(), "arguments": found.value, "id": identity.strip()})
    return Found(written[found.end :], (call,))
