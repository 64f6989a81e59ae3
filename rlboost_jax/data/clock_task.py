"""clock: start at digit x and add a, n times; which digit is reached, modulo 10?

Question `<begin> x a [n] =`, worked answer `[n-1] v [n-2] v … [0] v # v <end>`. Each pair
is one local step, so a policy that shows its work is right however long the way, and one
that guesses is right one time in ten. Lengths spread widely: 7 to 2n + 3 tokens, or 3.
"""

import numpy as np

from rlboost_jax.data.vocabulary import counter, digit

MAX_STEP = 3


def draw(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """Operands (x, a, n) of a problem of `length` steps."""
    return int(rng.integers(10)), int(rng.integers(1, MAX_STEP + 1)), length


def question(operands: tuple[int, ...]) -> list[int]:
    start, step, count = operands
    return [digit(start), digit(step), counter(count)]


def work(operands: tuple[int, ...]) -> list[int]:
    start, step, count = operands
    values = [(start + step * (k + 1)) % 10 for k in range(count)]
    return [
        token for k, value in enumerate(values) for token in (counter(count - 1 - k), digit(value))
    ]


def answer(operands: tuple[int, ...]) -> list[int]:
    start, step, count = operands
    return [digit((start + step * count) % 10)]
