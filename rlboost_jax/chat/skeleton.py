"""The parts of a rendered conversation that are not the policy's own words.

The policy's turns are put in as stand-ins: a word that occurs nowhere else. A rendered text then
falls into what the template writes before the first turn, between the end of a turn and the
beginning of the next, and after the last. Turns themselves are left out: they are taken
from what was sampled, never from a template.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, NamedTuple

from rlboost_jax.data.chat_rendering import ChatRefused
from rlboost_jax.environments.protocol import Message

STAND_IN: Final = "Zq0turn"  # letters and digits: no template trims, escapes or splits it


class LostTurn(ChatRefused):
    """A rendered text lacks a turn of the policy."""


class Habits(NamedTuple):
    """Text that a template writes around the policy's turns, found by `chat/template_probe.py`.

    Attributes:
        header: before each turn, in what came before as in what is to come.
        prefill: after it where the policy is to speak, but not in what came before: thinking
            that is opened, or opened and closed, for it.
        calls: it writes the calls of a message. Elsewhere they are part of its text.
    """

    header: str
    prefill: str
    calls: bool


def stand_ins(
    messages: Sequence[Message], *, word: str, calls: bool
) -> tuple[list[Message], list[str]]:
    """Replace the policy's turns by words; returns the messages, and the words in order.

    A turn that a tool answers is one call, since templates require the call before its result.

    Args:
        calls: see `Habits`.
    """
    replaced: list[Message] = []
    words: list[str] = []
    following = [m.get("role") for m in messages[1:]] + [None]
    for message, after in zip(messages, following, strict=True):
        if message.get("role") != "assistant":
            replaced.append(message)
            continue
        words.append(f"{word}{len(words)}x")
        if calls and (after == "tool" or message.get("tool_calls")):
            replaced.append(_call(message, words[-1]))
        else:
            replaced.append(Message(role="assistant", content=words[-1]))
    return replaced, words


def unused_word(messages: Sequence[Message]) -> str:
    """Word that occurs in no content."""
    word, everything = STAND_IN, repr(messages)
    while word in everything:
        word += "Z"
    return word


def parts_of(
    text: str,
    words: Sequence[str],
    *,
    header: str,
    stops: Collection[str],
    prompt: Callable[[int], str],
    ends: bool = False,
) -> tuple[str, ...]:
    """Parts of a text outside the turns: before the first, between them, and after the last.

    Each part but the first begins with the text of the stop that ends the turn before it. A part
    ends with the header of the next turn where it has one; what a template writes between header
    and content (thinking that is empty, a call's opening) is the turn's.

    Args:
        prompt: the text up to where the turn with a number was to be spoken. Asked where a turn
            has no header (Mistral's, after results).
        ends: the last turn may end with the text: nobody speaks after it.

    Raises:
        LostTurn: a turn is missing.
        ChatRefused: no stop ends a turn.
    """
    found, at = [], 0
    for place, word in enumerate(words):
        start = text.find(word, at)
        if start < 0:
            raise LostTurn(
                "a turn of the policy is left out, or written in another way: "
                f"{text[at : at + 80]!r} follows where it should be"
            )
        before = text[at:start]
        own = before.rfind(header) if header else -1
        found.append(
            before[: own + len(header)]
            if own >= 0
            else before[: _begins(before, prompt(place), words[:place], stops)]
        )
        last = place == len(words) - 1
        at = stop_after(text, start + len(word), stops, or_end=ends and last)
    return (*found, text[at:])


def _begins(before: str, prompt: str, earlier: Sequence[str], stops: Collection[str]) -> int:
    """Start of a turn without a header: where the prompt for it ended."""
    start = 0
    if earlier:
        start = stop_after(prompt, prompt.find(earlier[-1]) + len(earlier[-1]), stops)
    own = prompt[start:]
    return len(own) if before.startswith(own) else len(before)


def stop_after(text: str, start: int, stops: Collection[str], *, or_end: bool = False) -> int:
    """Position of the first stop after `start`. Raises ChatRefused.

    Args:
        or_end: of the text, where there is none.
    """
    places = [place for stop in stops if (place := text.find(stop, start)) >= 0]
    if not places and or_end:
        return len(text)
    if not places:
        raise ChatRefused(
            f"after the policy's turn the chat template writes {text[start : start + 40]!r} and "
            f"none of what ends a turn ({', '.join(map(repr, sorted(stops)))}); set data.stop_ids"
        )
    return min(places)


def shared(one: str, other: str) -> int:
    """Length of the common beginning of two texts."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def difference(one: str, other: str, *, around: int = 60) -> str:
    """Excerpts of two texts where they begin to differ, for people."""
    same = shared(one, other)
    start = max(0, same - around // 2)
    return f"{one[start : same + around]!r} became {other[start : same + around]!r}"


def _call(message: Message, word: str) -> Message:
    calls: Sequence[Any] = message.get("tool_calls") or ()
    known = calls[0] if calls else {}
    function = {"name": known.get("function", {}).get("name") or "tool", "arguments": {"x": word}}
    call = {"id": known.get("id") or "0" * 9, "type": "function", "function": function}
    return Message(role="assistant", content="", tool_calls=[call])
