"""Problems that are a list of digits: what the tasks that ask about one have in common."""

import numpy as np

from rlboost_jax.data.vocabulary import digit


def draw(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """`length` digits."""
    return tuple(int(d) for d in rng.integers(10, size=length))


def question(operands: tuple[int, ...]) -> list[int]:
    return [digit(d) for d in operands]
