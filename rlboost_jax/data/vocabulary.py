"""The tokens that all generated tasks share: a few marks, ten digits, counter values."""

from collections.abc import Iterable
from typing import Final

from rlboost_jax.settings.task_sizes import FIRST_COUNTER, NUM_SPECIALS, VOCAB_SIZE

END: Final = 1  # the only stop id
BEGIN: Final = 2
EQUALS: Final = 3  # ends the question
ANSWER: Final = 4  # what follows is the answer
MARKS: Final = ("_", "<end>", "<begin>", "=", "#")  # words of tokens 0 … 4; nothing is token 0
assert len(MARKS) == NUM_SPECIALS


def digit(value: int) -> int:
    """Token of a digit 0 … 9."""
    assert 0 <= value < 10
    return NUM_SPECIALS + value


def counter(value: int) -> int:
    """Token of a counter value 0 … 95."""
    assert 0 <= value < VOCAB_SIZE - FIRST_COUNTER
    return FIRST_COUNTER + value


def text(tokens: Iterable[int]) -> str:
    """Text of tokens for people, separated by spaces: `<begin> 5 2 [10] = # 5 <end>`."""
    return " ".join(_word(int(token)) for token in tokens)


def _word(token: int) -> str:
    if 0 <= token < NUM_SPECIALS:
        return MARKS[token]
    if NUM_SPECIALS <= token < NUM_SPECIALS + 10:
        return str(token - NUM_SPECIALS)
    if FIRST_COUNTER <= token < VOCAB_SIZE:
        return f"[{token - FIRST_COUNTER}]"
    return f"<{token}>"
