"""Random conversations to try a chat template with; the same for a seed."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from rlboost_jax.environments.protocol import Message

WORDS: Final = ("a", "tool", "gave", "7", "and", "the", "answer", "is", "not", "yet", "ask")
TEXTS: Final = (
    "",
    " ",
    "\n\nbetween empty lines\n\n",
    "  spaces on both sides \t",
    "naïve café — 数学 🙂 ﷽ \u202e",
    '{"name": "x", "arguments": {"y": [1, 2.5, null]}}',
    "```python\nprint('hi')\n```",
    "<b>not a mark</b> {{ nor }} {% this %} \\n",
    "ends with a line's end\n",
)
LONG: Final = 3000  # characters


class Exchange(NamedTuple):
    """A turn of the policy, and the messages after it."""

    turn: Message
    new: list[Message]


class SampleConversation(NamedTuple):
    opening: list[Message]
    exchanges: list[Exchange]


def samples(
    count: int, *, seed: int, marks: Sequence[str], calls: int, system: bool, results: int
) -> Iterator[SampleConversation]:
    """Draw conversations of two to five turns.

    Args:
        marks: control texts, which contents have in them now and then.
        calls: of one turn, at most; 0: no tools.
        system: some begin with a system prompt.
        results: of one turn, at most.
    """
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        opening = [Message(role="user", content=_text(rng, marks))]
        if system and rng.random() < 0.5:
            opening.insert(0, Message(role="system", content=_text(rng, ())))
        exchanges = []
        for _ in range(rng.randrange(2, 6)):
            asked = rng.randrange(1, results + 1) if calls and rng.random() < 0.6 else 0
            exchanges.append(_exchange(rng, asked, min(asked, calls), marks))
        yield SampleConversation(opening, exchanges)


def _exchange(rng: random.Random, results: int, calls: int, marks: Sequence[str]) -> Exchange:
    turn = Message(role="assistant", content=_words(rng) if rng.random() < 0.8 or not calls else "")
    if rng.random() < 0.4:
        turn["reasoning_content"] = _words(rng)
    if not calls:
        return Exchange(turn, [Message(role="user", content=_text(rng, marks))])
    made = [_call(rng) for _ in range(calls)]
    turn["tool_calls"] = made
    new = [
        Message(
            role="tool",
            name=call["function"]["name"],
            tool_call_id=call["id"],
            content=_text(rng, marks),
        )
        for call in (made * results)[:results]
    ]
    return Exchange(turn, new)


def _call(rng: random.Random) -> dict[str, Any]:
    values = (3, -2.5, "text", '数学 "quoted"\n', True, None, [1, [2]], {"deep": {"er": "x"}})
    arguments = {key: rng.choice(values) for key in ("a", "b")[: rng.randrange(3)]}
    function = {"name": rng.choice(("add", "look_up")), "arguments": arguments}
    identity = "".join(rng.choice("abcdefgh01234567") for _ in range(9))
    return {"id": identity, "type": "function", "function": function}


def _text(rng: random.Random, marks: Sequence[str]) -> str:
    kind = rng.random()
    if kind < 0.4:
        return _words(rng)
    if kind < 0.5:
        return (_words(rng) * LONG)[:LONG]
    if kind < 0.7 and marks:
        mark = rng.choice(marks)
        return f"{_words(rng)}{mark} {mark[:1]}{mark}{mark[1:]}\n{mark}{_words(rng)}"
    return rng.choice(TEXTS)


def _words(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randrange(1, 12)))
