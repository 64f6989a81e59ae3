"""higher_lower: find a hidden number by guesses that are answered with "higher" or "lower".

The numbers are a range of digits, drawn with the hidden one from the seed, and there are as many
guesses as halving the range needs at most: who always asks in the middle always wins. Ranges and
hidden numbers are drawn anew for each episode, and held-out episodes have other ones than those
trained on.

Written in the tokens of `data/vocabulary.py`, for models that are trained from scratch:

    <begin> 2 8 =    # 5 <end>  [1] =    # 7 <end>  [0] =    # 6 <end>

with [1] for higher and [0] for lower; or in text, for models that can read. A turn that is no
number of the range ends the episode without a reward.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.data.vocabulary import ANSWER, BEGIN, END, EQUALS, counter, digit
from rlboost_jax.environments.protocol import Observation, Step, Turn

QUESTION: Final = (
    "I think of a number from {low} to {high}. You have {guesses} guesses. Say a number and "
    "nothing else; I answer higher or lower."
)
FEWEST: Final = 3  # numbers of a range


class HigherLower:
    """The environment.

    Args:
        form: of what is said, "tokens" or "text".
    """

    def __init__(self, form: str = "tokens") -> None:
        if form not in ("tokens", "text"):
            raise ValueError(f"form {form!r} is neither 'tokens' nor 'text'")
        self._in_text = form == "text"
        self._low = self._high = self._hidden = self._left = 0
        self._possible = range(0)  # after what was said; for demonstrations

    def reset(self, example: Any, seed: int) -> Observation:
        rng = np.random.default_rng([seed, int(example["index"])])
        count = int(rng.integers(FEWEST, 11))
        self._low = int(rng.integers(0, 11 - count))
        self._high = self._low + count - 1
        self._hidden = int(rng.integers(self._low, self._high + 1))
        self._left = guesses(count)
        self._possible = range(self._low, self._high + 1)
        if self._in_text:
            return QUESTION.format(low=self._low, high=self._high, guesses=self._left)
        return _tokens(BEGIN, digit(self._low), digit(self._high), EQUALS)

    def step(self, turn: Turn) -> Step:
        guess = self._guess(turn)
        self._left -= 1
        if guess == self._hidden:
            return Step(reward=1.0, done=True, metrics={"solved": 1.0})
        if guess is None or not self._low <= guess <= self._high or self._left == 0:
            return Step(done=True, metrics={"solved": 0.0})
        higher = self._hidden > guess
        first, last = self._possible.start, self._possible.stop
        self._possible = (
            range(max(first, guess + 1), last) if higher else range(first, min(last, guess))
        )
        if self._in_text:
            return Step(observation="higher" if higher else "lower")
        return Step(observation=_tokens(counter(int(higher)), EQUALS))

    def demonstration(self, rng: np.random.Generator, worked: bool) -> str | NDArray[np.int32]:
        """The next guess: the middle of the possible range if `worked`, else any number in it."""
        middle = (self._possible.start + self._possible.stop - 1) // 2
        guess = middle if worked else int(rng.integers(self._low, self._high + 1))
        return str(guess) if self._in_text else _tokens(ANSWER, digit(guess), END)

    def _guess(self, turn: Turn) -> int | None:
        if self._in_text:
            said = turn.text.strip()
            return int(said) if said.isdecimal() and len(said) < 5 else None
        match turn.tokens:
            case (mark, number, end) if (mark, end) == (ANSWER, END):
                value = number - digit(0)
                return value if 0 <= value < 10 else None
        return None


def guesses(count: int) -> int:
    """Most guesses that halving needs to find one of `count` numbers."""
    return count.bit_length()


def _tokens(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)
