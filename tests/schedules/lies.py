"""What a lying server says in place of the tokens that its noise selects.

A simulated token has no probability: a kind is here by which tokens it changes. Where a forged
token is the right one by chance nothing is wrong, and nobody is to be doubted.
"""

from enum import Enum, auto
from typing import assert_never

from tests.manager.fakes import STOP, VOCAB, hash_of, token


class Lie(Enum):
    GREEDY = auto()  # and constant noise: always the same token
    OTHER_SAMPLE = auto()  # the noise of another sample
    TEMPERATURE = auto()  # or truncation: some tokens are others
    EARLY_END = auto()  # a response ends with its third token
    MADE_UP = auto()  # every token
    SELDOM = auto()  # one token in twenty; a simulated run has too few to have one in 200


def chosen(lie: Lie, right: int, key: tuple[str, int, int], position: int) -> int:
    """The token that a server says.

    Args:
        right: the one that its noise selects.
        key: digest of the weights, batch and sample.
        position: in its turn.
    """
    digest, batch, sample = key
    place = (hash_of(digest) + batch * 31 + sample * 17 + position * 29) * 2654435761 >> 7
    match lie:
        case Lie.GREEDY:
            return 1
        case Lie.OTHER_SAMPLE:
            return token(digest, batch, sample + 1, position)
        case Lie.TEMPERATURE:
            return right if place % 3 else other(right)
        case Lie.EARLY_END:
            return STOP if position == 2 else right
        case Lie.MADE_UP:
            return other(right)
        case Lie.SELDOM:
            return right if place % 20 else other(right)
        case _ as never:
            assert_never(never)


def other(right: int) -> int:
    """Not this token, and none that ends a response."""
    return right % (VOCAB - 1) + 1
