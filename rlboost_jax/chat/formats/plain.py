"""Plain JSON: lines that begin with an object `{"name": …, "arguments": {…}}`, or a list of them.

They may stand in a fence (```json). An object of another form is text, as is all else.
"""

import re
from typing import Final

from rlboost_jax.chat.formats.objects import TurnParts, broken, call_of, decoded, is_call

_FENCE: Final = re.compile(r"^```[a-z]*[ \t]*$", re.MULTILINE)
_START: Final = re.compile(r"^[{[]", re.MULTILINE)
_NAMED: Final = '"name"'


def parse(text: str) -> TurnParts:
    """Parse a turn up to the first line that seems to begin a call and is no complete one."""
    text = _FENCE.sub("", text)
    kept, calls, at = [], [], 0
    while match := _START.search(text, at):
        kept.append(text[at : match.start()])
        found = decoded(text, match.start())
        at = match.start()
        if found.problem:
            if _NAMED in text[at:]:
                calls.append(broken(found.problem))
            break
        values = found.value if isinstance(found.value, list) else [found.value]
        if values and all(map(is_call, values)):
            calls.extend(map(call_of, values))
        else:
            kept.append(text[at : found.end])
        at = found.end
        if at == match.start():  # nothing was read
            break
    kept.append(text[at:])
    return TurnParts("".join(kept).strip(), tuple(calls))
