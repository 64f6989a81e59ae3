"""Text of a turn while it is sampled: where a stop text ends it, and how much of it is final."""

from collections.abc import Callable, Sequence
from typing import Final

Decode = Callable[[Sequence[int]], str]  # of token ids, without special ones

_BYTES: Final = 4  # of a character, at most; each may be a token of its own
_SPARE: Final = 8  # tokens that may yield no character
_MARKS: Final = "<[{`"  # what a mark or a call may begin with
_UNFINISHED: Final = "\ufffd"


def stopped_after(
    tokens: Sequence[int], new: int, stops: Sequence[str], decode: Decode
) -> int | None:
    """Number of `tokens` with which a stop text is complete; None if none is.

    Args:
        new: the last ones, with which it must be complete.
    """
    if not stops:
        return None
    window = max(map(len, stops)) * _BYTES + _SPARE
    for end in range(len(tokens) - new + 1, len(tokens) + 1):
        text = decode(tokens[max(0, end - window) : end])
        if any(stop in text for stop in stops):
            return end
    return None


def before_stop(text: str, stops: Sequence[str]) -> str:
    """Text up to the first stop text in it."""
    ends = [place for stop in stops if (place := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def certain(text: str, stops: Sequence[str]) -> str:
    """Beginning of a turn's text that no later token changes.

    White space at the end may be cut off, bytes may be a character's first, a mark may be one of a
    call or of thinking, and the end may be the beginning of a stop text.
    """
    text = text.rstrip(_UNFINISHED)
    places = [place for mark in _MARKS if (place := text.find(mark)) >= 0]
    text = text[: min(places)] if places else text
    for stop in stops:
        for length in range(min(len(stop), len(text)), 0, -1):
            if text.endswith(stop[:length]):
                text = text[:-length]
                break
    return text.rstrip()
