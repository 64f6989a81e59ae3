"""Training prompts by random access: any of them can be asked for at any time.

Steps keep a cursor, the number of prompts taken so far, and ask for a slice from there on. A
resumed run gets what it would have got; no iterator state needs to be saved.
"""

from typing import Any, cast

import grain

from rlboost_jax.data.exercises import Exercises, Prompt


class PromptStream:
    """Training prompts, epoch after epoch, each in another order; all named by the seed."""

    def __init__(self, exercises: Exercises, *, seed: int) -> None:
        epoch = cast(Any, exercises.train(seed))  # Grain's protocol wants __getitem__ to say more
        self._prompts: grain.MapDataset[Prompt] = (
            grain.MapDataset.source(epoch).seed(seed).shuffle().repeat()
        )

    def slice(self, first: int, count: int) -> tuple[Prompt, ...]:
        """`count` prompts from index `first` on, which may be any number."""
        return tuple(self._prompts[index] for index in range(first, first + count))
