"""Exercises of a run with an environment: the first prompts of its episodes.

Examples are numbers that the environment makes something of, or rows of the run's data set. The
prompt of an example is what an environment says to it first; each episode has one of its own that
says the same.
"""

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Protocol, SupportsIndex

from numpy.typing import ArrayLike

from rlboost_jax.data.exercises import AskGroup, Mixed, Prompt, Prompts, Tokens
from rlboost_jax.data.mixture import dataset_of
from rlboost_jax.data.prompt_stream import side_by_side
from rlboost_jax.data.questions import Question
from rlboost_jax.data.tasks import EPOCH
from rlboost_jax.environments.episodes import EpisodeService
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET
from rlboost_jax.workers.futures import when_all

EVERY: Final = 8  # one example in so many is held out
AT_ONCE: Final = 32  # resets that are waited for side by side

Example = Mapping[str, Any]


class Examples(Protocol):
    """Random access to examples; `problem` is what else is known of one."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> tuple[Example, Any]: ...


class Numbers:
    """{"index": n}: every eighth is held out, all others are trained on.

    An environment that takes n modulo a number of its own keeps the two apart, if eight divides it.
    """

    def __init__(self, count: int, *, heldout: bool) -> None:
        self._count, self._heldout = count, heldout

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int, /) -> tuple[Example, Any]:
        if self._heldout:
            return {"index": EVERY * index}, None
        return {"index": EVERY * (index // (EVERY - 1)) + index % (EVERY - 1) + 1}, None


class RowsOf:
    """Rows of a data set as examples."""

    def __init__(self, prompts: Any) -> None:
        self._prompts = prompts

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, index: int, /) -> tuple[Example, Any]:
        prompt: Prompt = self._prompts[index]
        question: Question = prompt.problem
        return question.example, prompt


class FirstPrompts:
    """Prompts of examples: Grain's random-access source. Several can be requested at once."""

    at_once: int = AT_ONCE

    def __init__(self, service: EpisodeService, examples: Examples, seed: int) -> None:
        self._service, self._examples, self._seed = service, examples, seed

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: SupportsIndex) -> Prompt:
        example, beside = self._examples[int(index)]
        problem, tokens = self._service.problem(example, seed_of(self._seed, example))
        source = beside.source if isinstance(beside, Prompt) else None
        return Prompt(tokens=tokens, problem=replace(problem, beside=beside), source=source)


class EpisodeExercises:
    """`Exercises` of a run with an environment.

    Raises ConfigError, when made, for an environment or data that cannot be used.
    """

    def __init__(
        self,
        run: RunConfig,
        *,
        note: Callable[[str], None] = lambda line: None,
        folder: Path | None = None,
    ) -> None:
        """
        Args:
            note: shows a line on the console.
            folder: of the run; None: no other hosts are let in.
        """
        self.name = run.environment.name
        self._dataset = dataset_of(run) if run.task.name == DATASET else None
        self.record: Mapping[str, Any] | None = self._dataset.record if self._dataset else None
        self._num_heldout = run.task.num_heldout
        self._functions = bool(self._dataset and self._dataset.judges)
        try:
            example, _ = self._examples(run.seed)[0]
            self.service = EpisodeService(
                run, example=example, seed=seed_of(run.seed, example), note=note, folder=folder
            )
        except BaseException:  # an interrupt, too: the data set has processes of its own
            if self._dataset is not None:
                self._dataset.close()
            raise
        self.stop_ids = self.service.renderer.stop_ids
        self.stops = self.service.renderer.stops
        self.ask_group: AskGroup | None = None  # `validate_environment.py` sees to that

    def train(self, seed: int) -> Prompts:
        rows = self._dataset.train(seed) if self._dataset is not None else None
        if isinstance(rows, Mixed):
            parts = ((FirstPrompts(self.service, RowsOf(p), seed), w) for p, w in rows.parts)
            return Mixed(parts=tuple(parts))
        return FirstPrompts(self.service, self._examples(seed), seed)

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        examples: Examples
        if self._dataset is not None:
            examples = RowsOf(self._dataset.heldout(seed, count))
        else:
            examples = Numbers(min(count, self._num_heldout), heldout=True)
        prompts = FirstPrompts(self.service, examples, seed)
        return side_by_side(prompts.__getitem__, range(len(prompts)), at_once=AT_ONCE)

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        raise AssertionError("an episode is judged as a whole: see `judged`")

    def judged(self, prompt: Prompt, response: Tokens, episode: Future[Verdict]) -> Future[Verdict]:
        """Add the reward functions of the run, if it has any, to an episode's verdict."""
        if self._dataset is None or not self._functions:
            return episode
        asked = replace(prompt, problem=prompt.problem.beside.problem)
        return when_all([episode, self._dataset.ask(asked, response)], lambda r: added(*r))

    def text(self, tokens: ArrayLike) -> str:
        return self.service.renderer.text(tokens)

    def close(self) -> None:
        self.service.close()
        if self._dataset is not None:
            self._dataset.close()

    def _examples(self, seed: int) -> Examples:
        if self._dataset is not None:
            return RowsOf(self._dataset.train(seed))
        return Numbers(EPOCH, heldout=False)


def added(episode: Verdict, functions: Verdict) -> Verdict:
    """Add an episode's reward and that of the run's functions; accuracy is the environment's."""
    return replace(
        episode,
        reward=episode.reward + functions.reward,
        outcome=episode.reward,
        components=MappingProxyType({**episode.components, **functions.components}),
        faults=functions.faults,
    )


def seed_of(seed: int, example: Example) -> int:
    """Seed of everything random in the episodes of an example: 32 bits, the same in each epoch."""
    if set(example) == {"index"}:
        data = f"{seed} {example['index']}"
    else:
        data = f"{seed} {sorted((k, str(v)) for k, v in example.items())}"
    return int.from_bytes(hashlib.blake2b(data.encode(), digest_size=4).digest(), "little")
