"""running_sum: what is the sum of a list of digits, modulo 10?

Question `<begin> d1 … dn =`, worked answer `[n-1] s1 [n-2] s2 … [0] sn # sn <end>` with the
sum so far after each digit. The counter says which digit of the question comes next.
"""

from itertools import accumulate

import numpy as np

from rlboost_jax.data.vocabulary import counter, digit


def draw(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """`length` digits."""
    return tuple(int(d) for d in rng.integers(10, size=length))


def question(operands: tuple[int, ...]) -> list[int]:
    return [digit(d) for d in operands]


def work(operands: tuple[int, ...]) -> list[int]:
    left = range(len(operands) - 1, -1, -1)
    sums = zip(left, accumulate(operands), strict=True)
    return [token for k, total in sums for token in (counter(k), digit(total % 10))]


def answer(operands: tuple[int, ...]) -> list[int]:
    return [digit(sum(operands) % 10)]
