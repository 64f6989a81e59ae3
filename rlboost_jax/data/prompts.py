"""Training prompts by random access: any of them can be asked for at any time.

Steps keep a cursor, the number of prompts taken so far, and ask for a slice from there on. A
resumed run gets what it would have got; no iterator state needs to be saved.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grain

from rlboost_jax.data.exercises import Exercises, Prompt


class PromptStream:
    """Training prompts, epoch after epoch, each in another order; all named by the seed."""

    def __init__(self, exercises: Exercises, *, seed: int) -> None:
        epoch = cast(Any, exercises.train(seed))  # Grain's protocol wants __getitem__ to say more
        self._at_once: int = getattr(epoch, "at_once", 1)
        self._prompts: grain.MapDataset[Prompt] = (
            grain.MapDataset.source(epoch).seed(seed).shuffle().repeat()
        )

    def slice(self, first: int, count: int) -> tuple[Prompt, ...]:
        """`count` prompts from index `first` on, which may be any number."""
        places = range(first, first + count)
        return side_by_side(self._prompts.__getitem__, places, at_once=self._at_once)


def side_by_side(
    prompt: Callable[[int], Prompt], places: Iterable[int], *, at_once: int
) -> tuple[Prompt, ...]:
    """The prompts with these numbers, in their order.

    Args:
        at_once: how many are waited for; 1: they are made here.
    """
    if at_once <= 1:
        return tuple(prompt(place) for place in places)
    with ThreadPoolExecutor(at_once, thread_name_prefix="prompts") as threads:
        return tuple(threads.map(prompt, places))
