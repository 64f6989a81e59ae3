"""What a run trains on, whether it is generated or read: prompts, and who judges the responses.

The learner knows this protocol only. `data/tasks.py` generates its exercises and judges them at
once; `data/dataset.py` reads them and asks the reward functions of the run.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rlboost_jax.rewards.verdict import Verdict

Tokens = NDArray[np.int32]
Verdicts = tuple[Verdict, ...]  # of a group, in the order of its samples


class Source(NamedTuple):
    """One of the data sets of a mixture.

    Attributes:
        weight: of its accuracy among the others'.
    """

    name: str
    weight: float


@dataclass(frozen=True, kw_only=True)
class Prompt:
    tokens: Tokens
    problem: Any  # what its exercises judge a response by
    source: Source | None = None  # that it is of, in a mixture


@runtime_checkable
class Prompts(Protocol):
    """Prompts by random access: entry i is always the same one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Prompt: ...


@dataclass(frozen=True, kw_only=True)
class Mixed:
    """Prompts of several data sets, one after the other; `PromptStream` mixes them by weight.

    Attributes:
        parts: one epoch of each data set, and its weight.
    """

    parts: tuple[tuple[Prompts, float], ...]

    def __len__(self) -> int:
        return sum(len(part) for part, _ in self.parts)

    def __getitem__(self, index: int, /) -> Prompt:
        for part, _ in self.parts:
            if index < len(part):
                return part[index]
            index -= len(part)
        raise IndexError(index)


@runtime_checkable
class Exercises(Protocol):
    """A response is judged by `ask`; everything else is a function of configuration and seed."""

    @property
    def name(self) -> str: ...

    stop_ids: tuple[int, ...]  # any of these ends a response
    stops: bytes  # of the strings that end one, see `sequences/stop_table.py`; b"": there are none

    @property
    def record(self) -> Mapping[str, Any] | None:
        """What was read and left out, for the run's folder."""
        ...

    def train(self, seed: int) -> Prompts:
        """One epoch in its own order, or `Mixed` ones; `PromptStream` shuffles them."""
        ...

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        """At most `count` prompts for evaluation; none of them ever appears in training."""
        ...

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        """Have a response judged. The future may be done already, and is done from any thread.

        An exception in it is no fault of the response: the run cannot go on.
        """
        ...

    @property
    def ask_group(self) -> "AskGroup | None":
        """Has a whole group judged, where rewards compare its responses; None: none do.

        Then a response has its reward from here, and `ask` says a part of it only.
        """
        ...

    def text(self, tokens: ArrayLike) -> str:
        """Tokens for a person."""
        ...

    def close(self) -> None:
        """End the processes that judge; what is still asked is cancelled."""
        ...


@runtime_checkable
class AskGroup(Protocol):
    def __call__(
        self,
        prompt: Prompt,
        responses: Sequence[Tokens],
        alone: Sequence[Future[Verdict]],
        /,
    ) -> Future[Verdicts]:
        """
        Args:
            responses: all to the prompt, in the order of their samples.
            alone: what `Exercises.ask` gave for each. To cancel the group leaves it as it is.
        """
        ...
