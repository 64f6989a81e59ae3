"""The environment of a run, as the training loop knows it."""

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol, runtime_checkable

import msgspec

from rlboost_jax import messages
from rlboost_jax.data.exercises import Prompt
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.environments.hosted import EpisodeStart
from rlboost_jax.learner.episodes.assembly import DeliveredEpisode
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Batch, Work

PromptOf = Callable[[Work], Prompt | None]


@runtime_checkable
class EpisodesLike(Protocol):
    """Interface of an environment that a training loop needs."""

    @property
    def turns(self) -> int:
        """Most turns of an episode."""
        ...

    def begin(self, batch: Batch, prompt_of: PromptOf) -> None:
        """Prepare for a batch, before the manager is told of it.

        Args:
            prompt_of: of an episode, in any thread; None: the batch does not have it.
        """
        ...

    def judge(self, prompt: Prompt, episode: DeliveredEpisode, /) -> Future[Verdict]:
        """Compute the verdict on a complete episode."""
        ...

    def over(self, batch: Batch) -> None:
        """Forget a batch, of which nothing more arrives."""
        ...


class Environments:
    """The environment of the run's exercises."""

    def __init__(self, exercises: EpisodeExercises, turns: int) -> None:
        self._exercises, self._service, self.turns = exercises, exercises.service, turns

    def connect(
        self,
        folder: Path,
        run_id: str,
        *,
        answer: Callable[[messages.Answer, int], None],
        fail: Callable[[Exception], None],
    ) -> None:
        """Connect, before the first batch; see `EpisodeService.connect`."""
        self._service.connect(folder, run_id, answer=answer, fail=fail)

    def take(self, parked: messages.Parked, stream: int = 0) -> None:
        """Take a finished turn; callable in any thread. See `EpisodeService.take`."""
        self._service.take(parked, stream)

    def begin(self, batch: Batch, prompt_of: PromptOf) -> None:
        def problem(work: Work) -> EpisodeStart | None:
            prompt = prompt_of(work)
            found: EpisodeStart | None = prompt.problem if prompt is not None else None
            return found

        self._service.begin(batch, problem)

    def judge(self, prompt: Prompt, episode: DeliveredEpisode, /) -> Future[Verdict]:
        work = msgspec.structs.replace(episode.work, sequence=len(episode.sequences) - 1)
        worth = self._service.judge(work, episode.attempts[-1], episode.sequences[-1])
        return self._exercises.judged(prompt, episode.response, worth)

    def over(self, batch: Batch) -> None:
        self._service.over(batch)
