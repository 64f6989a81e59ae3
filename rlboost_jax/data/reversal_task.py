"""reversal: write a list of digits backwards.

Question `<begin> d1 … dn =`, worked answer `[n-1] dn [n-2] … [0] d1 # dn … d1 <end>`: each
digit is looked up beside its place in the question first, then the list is written. A guess
is right one time in 10ⁿ, so here only the short problems reward guessing at all.
"""

from rlboost_jax.data.digits import draw, question
from rlboost_jax.data.vocabulary import counter, digit

__all__ = ["answer", "draw", "question", "work"]


def work(operands: tuple[int, ...]) -> list[int]:
    places = range(len(operands) - 1, -1, -1)
    return [token for k in places for token in (counter(k), digit(operands[k]))]


def answer(operands: tuple[int, ...]) -> list[int]:
    return [digit(d) for d in reversed(operands)]
