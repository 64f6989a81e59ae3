"""Extraction of the answer from a text."""

import re
from collections.abc import Callable, Mapping
from typing import Final

_BOX: Final = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BARE: Final = re.compile(r"\\(?:boxed|fbox)\s+([^\s${}][^${}]{0,60}?)\s*\$")
_BETWEEN: Final = re.compile(
    r"\\(?:text|mathrm)|\\(?:quad|[()\[\],;! ])|\b[A-Za-z](?:_\{?\w\}?)?\s*=\s*$|[\s${}]"
)
_JOINED: Final = frozenset({",", ";", "&", "and", "or", ",and", ",or"})
_LONGEST_BETWEEN: Final = 60  # characters between two boxes that are one answer


def boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{…}` or `\fbox{…}`, with its own braces matched.

    Where none has braces, as in `$\boxed 5$` of some solutions of MATH, up to the dollar sign. None
    where there is none, or the last one has no end: what was begun anew is not answered yet.
    """
    boxes = last_boxes(text)
    if boxes is None and (bare := _BARE.findall(text)):
        return str(bare[-1])
    return boxes[-1] if boxes else None


def last_boxes(text: str) -> list[str] | None:
    r"""The contents of the last box and of those that it is listed with.

    `\boxed{2} and \boxed{3}` is one answer of two boxes. In `\boxed{2}, no: \boxed{3}` the last
    one counts.

    Returns:
        In their order; [] where the last box has no end, and None where none is begun.
    """
    starts = list(_BOX.finditer(text))
    if not starts:
        return None
    found: list[str] = []
    following = len(text)  # where the box after this one begins
    for start in reversed(starts):
        end = _end(text, start.end())
        if end is None or (found and not _listed(text[end + 1 : following])):
            break
        found.insert(0, text[start.end() : end].strip())
        following = start.start()
    return found


def _end(text: str, first: int) -> int | None:
    """Find the closing brace of a box whose content begins at `first`; None: it has none."""
    depth = 1
    for end in range(first, len(text)):
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return end
    return None


def _listed(between: str) -> bool:
    return len(between) <= _LONGEST_BETWEEN and _BETWEEN.sub("", between) in _JOINED


def after_thinking(text: str) -> str:
    """Text after the last `</think>`; all of the text if nothing follows one."""
    _, _, rest = text.rpartition("</think>")
    return rest if rest.strip() else text


def after_hashes(text: str) -> str | None:
    """Text after the last `####`, as in GSM8K, without commas between digits."""
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
