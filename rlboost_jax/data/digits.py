"""Helpers of the tasks whose problems are lists of digits."""

import numpy as np

from rlboost_jax.data.vocabulary import digit


def draw(rng: np.random.Generator, length: int) -> tuple[int, ...]:
    """Draw `length` digits."""
    return tuple(int(d) for d in rng.integers(10, size=length))


def question(operands: tuple[int, ...]) -> list[int]:
    return [digit(d) for d in operands]
