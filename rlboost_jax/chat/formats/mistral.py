"""Mistral: `[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": …}, …]`, and the later form
`[TOOL_CALLS]name[CALL_ID]id[ARGS]{…}`, once for each call; the newest has no ids.

Its templates take ids of nine letters or digits only, so another one counts as none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rlboost_jax.chat.formats.objects import TurnParts, after_spaces, broken, call_of, decoded
from rlboost_jax.environments.protocol import ToolCall

CALLS: Final = "[TOOL_CALLS]"
ID: Final = "[CALL_ID]"
ARGS: Final = "[ARGS]"


def parse(text: str) -> TurnParts:
    """Parse a turn.

    A mark inside a JSON string begins no call. After text that is no call, parsing resumes at the
    next mark.
    """
    kept, calls, at = [], list[ToolCall](), 0
    while (start := text.find(CALLS, at)) >= 0:
        kept.append(text[at:start])
        found, at = _calls(text, start + len(CALLS))
        calls.extend(map(_with_proper_id, found))
        if any(call.problem for call in found):
            kept.append(text[start:at])
    kept.append(text[at:])
    return TurnParts("".join(kept).strip(), tuple(calls))


def _with_proper_id(call: ToolCall) -> ToolCall:
    proper = len(call.id) == 9 and call.id.isalnum() and call.id.isascii()
    return call if proper else replace(call, id="")


def _calls(text: str, start: int) -> tuple[Sequence[ToolCall], int]:
    """Parse the calls whose mark ends at `start`; also returns where the text goes on."""
    following = text.find(CALLS, start)
    end = len(text) if following < 0 else following
    first = after_spaces(text, start)
    if text.startswith(("[", "{"), first) and not text.startswith((ID, ARGS), start):
        found = decoded(text, first)
        if found.problem:
            return (broken(found.problem),), end
        values = found.value if isinstance(found.value, list) else [found.value]
        return tuple(map(call_of, values)), found.end
    mark = text.find(ARGS, start, end)
    if mark < 0:
        return (broken(f"{CALLS} without a list and without {ARGS}"),), end
    name, _, identity = text[start:mark].partition(ID)
    found = decoded(text, after_spaces(text, mark + len(ARGS)))
    if found.problem:
        return (broken(found.problem, name.strip()),), end
    call = call_of({"name": name.strip(), "arguments": found.value, "id": identity.strip()})
    return (call,), found.end
