"""Protocol of a run's exercises, generated or read: prompts, and judges of the responses.

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


class MixtureSource(NamedTuple):
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
    source: MixtureSource | None = None  # that it is of, in a mixture


@runtime_checkable
class Prompts(Protocol):
    """Prompts by random access: entry i is always the same."""

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
    """Prompts and their judge. Apart from `ask`, everything follows from configuration and seed."""

    @property
    def name(self) -> str: ...

    stop_ids: tuple[int, ...]  # any of these ends a response
    stops: bytes  # of the strings that end one, see `sequences/stop_table.py`; b"": there are none

    @property
    def record(self) -> Mapping[str, Any] | None:
        """Record of the rows read and left out, for the run's folder."""
        ...

    def train(self, seed: int) -> Prompts:
        """One epoch in its own order, or `Mixed` ones; `PromptStream` shuffles them."""
        ...

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        """At most `count` prompts for evaluation; none of them ever appears in training."""
        ...

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        """Start judging a response. The future may be done already, and is done from any thread.

        An exception in it is not the response's fault: the run cannot continue.
        """
        ...

    @property
    def ask_group(self) -> "AskGroup | None":
        """Judge of whole groups, if rewards compare their responses; None: none do.

        Then a response has its reward from here, and `ask` computes only a part of it.
        """
        ...

    def text(self, tokens: ArrayLike) -> str:
        """Decode tokens for people."""
        ...

    def close(self) -> None:
        """End the judging processes; pending requests are cancelled."""
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
        """Start judging the responses to a prompt together.

        Args:
            responses: all to the prompt, in the order of their samples.
            alone: the future of `Exercises.ask` for each. Cancelling the group does not cancel it.
        """
        ...
