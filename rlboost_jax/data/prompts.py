"""The prompts of each step, by random access: any step can be asked for at any time.

A resumed run asks for the step that it has reached and gets what it would have got; no
iterator state needs to be saved. Steps that take a varying number of prompts keep a cursor
(the number of prompts taken so far) and ask for a slice.
"""

from typing import Any, cast

import grain

from rlboost_jax.data.exercises import Exercises, Prompt


class PromptStream:
    """Training prompts, epoch after epoch, each in another order; all named by the seed."""

    def __init__(self, exercises: Exercises, *, seed: int, prompts_per_step: int) -> None:
        self._prompts_per_step = prompts_per_step
        epoch = cast(Any, exercises.train(seed))  # Grain's protocol wants __getitem__ to say more
        self._prompts: grain.MapDataset[Prompt] = (
            grain.MapDataset.source(epoch).seed(seed).shuffle().repeat()
        )

    def prompt(self, index: int) -> Prompt:
        """The prompt with this index, from 0 to any number."""
        return self._prompts[index]

    def slice(self, first: int, count: int) -> tuple[Prompt, ...]:
        """`count` prompts from index `first` on."""
        return tuple(self._prompts[index] for index in range(first, first + count))

    def step(self, step: int) -> tuple[Prompt, ...]:
        """Those of a step, where every step takes `prompts_per_step`."""
        return self.slice(step * self._prompts_per_step, self._prompts_per_step)
