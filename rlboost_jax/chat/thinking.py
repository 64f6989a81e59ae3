"""Thinking: the part of a turn between marks, which is not its answer."""

from typing import Final, Literal, NamedTuple

Thinking = Literal["keep", "drop"]


class Marks(NamedTuple):
    open: str
    close: str


THINK: Final = Marks("<think>", "</think>")
KNOWN: Final = (
    THINK,
    Marks("[THINK]", "[/THINK]"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<|channel>thought", "<channel|>"),  # Gemma 4
)


class Split(NamedTuple):
    thinking: str
    text: str


def marks_of(template: str) -> Marks:
    """Thinking marks that a template names; `THINK` if it names none that are known."""
    return next((marks for marks in KNOWN if marks.close in template), THINK)


def is_open(prompt: str, marks: Marks) -> bool:
    """Whether a prompt ends within thinking, so that a turn begins there."""
    return prompt.rfind(marks.open) > prompt.rfind(marks.close)


def split(text: str, marks: Marks, *, opened: bool) -> Split:
    """Take thinking out of a turn's text. What is not closed is thinking up to the end.

    Args:
        opened: the prompt ended within thinking. A closing mark that nothing opened says so, too.
    """
    thoughts, rest, at = [], [], 0
    first_open, first_close = text.find(marks.open), text.find(marks.close)
    unopened = first_close >= 0 and not 0 <= first_open < first_close
    if unopened or (opened and first_open != 0):
        end = first_close if first_close >= 0 else len(text)
        thoughts.append(text[:end])
        at = end + len(marks.close)
    while at < len(text) and (start := text.find(marks.open, at)) >= 0:
        rest.append(text[at:start])
        start += len(marks.open)
        end = text.find(marks.close, start)
        end = len(text) if end < 0 else end
        thoughts.append(text[start:end])
        at = end + len(marks.close)
    rest.append(text[at:])
    thinking = "\n".join(thought.strip() for thought in thoughts if thought.strip())
    return Split(thinking, "".join(rest).strip())
