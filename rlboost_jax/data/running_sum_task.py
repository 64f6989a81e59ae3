"""running_sum: what is the sum of a list of digits, modulo 10?

Question `<begin> d1 … dn =`, worked answer `[n-1] s1 [n-2] s2 … [0] sn # sn <end>` with the
sum so far after each digit. The counter says which digit of the question comes next.
"""

from itertools import accumulate

from rlboost_jax.data.digits import draw, question
from rlboost_jax.data.vocabulary import counter, digit

__all__ = ["answer", "draw", "question", "work"]


def work(operands: tuple[int, ...]) -> list[int]:
    left = range(len(operands) - 1, -1, -1)
    sums = zip(left, accumulate(operands), strict=True)
    return [token for k, total in sums for token in (counter(k), digit(total % 10))]


def answer(operands: tuple[int, ...]) -> list[int]:
    return [digit(sum(operands) % 10)]
