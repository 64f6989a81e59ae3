"""Training prompts by random access: any of them can be asked for at any time.

Steps keep a cursor, the number of prompts taken so far, and ask for a slice from there on. A
resumed run gets what it would have got; no iterator state needs to be saved.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import grain
import numpy as np

from rlboost_jax.data.exercises import Exercises, Mixed, Prompt, Prompts


class PromptStream:
    """Training prompts, epoch after epoch, each in another order; all named by the seed.

    In a mixture each data set has its own epochs. Of the first n prompts it has its share by
    weight, but for less prompts than there are data sets.
    """

    def __init__(self, exercises: Exercises, *, seed: int) -> None:
        epoch = exercises.train(seed)
        if isinstance(epoch, Mixed):
            streams = [
                _endless(part, np.random.SeedSequence((seed, place)).generate_state(1)[0])
                for place, (part, _) in enumerate(epoch.parts)
            ]
            weights = [weight for _, weight in epoch.parts]
            self._prompts = grain.MapDataset.mix(streams, weights)
            epoch = epoch.parts[0][0]
        else:
            self._prompts = _endless(epoch, seed)
        self._at_once: int = getattr(epoch, "at_once", 1)

    def slice(self, first: int, count: int) -> tuple[Prompt, ...]:
        """`count` prompts from index `first` on, which may be any number."""
        places = range(first, first + count)
        return side_by_side(self._prompts.__getitem__, places, at_once=self._at_once)


def _endless(epoch: Prompts, seed: int) -> "grain.MapDataset[Prompt]":
    """Epoch after epoch, each in a different order."""
    source = cast(Any, epoch)  # Grain's protocol wants __getitem__ to say more
    return grain.MapDataset.source(source).seed(int(seed)).shuffle().repeat()


def side_by_side(
    prompt: Callable[[int], Prompt], places: Iterable[int], *, at_once: int
) -> tuple[Prompt, ...]:
    """Prompts of these numbers, in their order, several made at a time.

    Args:
        at_once: how many are waited for; 1: they are made here.
    """
    if at_once <= 1:
        return tuple(prompt(place) for place in places)
    with ThreadPoolExecutor(at_once, thread_name_prefix="prompts") as threads:
        return tuple(threads.map(prompt, places))
