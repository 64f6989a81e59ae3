"""Where the answer stands in a text."""

import re
from collections.abc import Callable, Mapping
from typing import Final


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`, with its own braces matched."""
    start = max(text.rfind("\\boxed{"), text.rfind("\\fbox{"))
    if start < 0:
        return None
    first = text.index("{", start) + 1
    depth = 1
    for end in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return text[first:end].strip()
    return None


def after_hashes(text: str) -> str | None:
    """What follows the last `####`, as in GSM8K; commas between digits are dropped."""
    _, mark, answer = text.rpartition("####")
    return re.sub(r"(?<=\d),(?=\d)", "", answer.strip()) if mark else None


def answer_tag(text: str) -> str | None:
    """The content of the last `<answer>…</answer>`."""
    opening, closing = "<answer>", "</answer>"
    found, at = None, 0
    while (begin := text.find(opening, at)) >= 0:  # no regular expression: this takes one pass
        begin += len(opening)
        end = text.find(closing, begin)
        if end < 0:
            break
        found, at = text[begin:end].strip(), end + len(closing)
    return found


def whole(text: str) -> str | None:
    return text.strip()


FORMATS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "": whole,
    "boxed": boxed,
    "after_hashes": after_hashes,
    "answer_tag": answer_tag,
}
