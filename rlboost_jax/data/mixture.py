"""Mixture of several data sets in one run: `Exercises` of `data.mixture`.

Prompt i is of a data set that follows from i and the weights alone, and each data set goes through
its own rows epoch after epoch. So a run resumes by the number of prompts taken, as any other.
"""

import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from numpy.typing import ArrayLike

from rlboost_jax.data.dataset import Dataset
from rlboost_jax.data.exercises import AskGroup, Mixed, MixtureSource, Prompt, Tokens, Verdicts
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.rewards.judge import Judge
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.mixture_parts import allotted, parts_of
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.run_config import RunConfig


class Mixture:
    """Making one reads every row of every data set once.

    Raises:
        ConfigError: whatever is wrong with one of them; the message names it.
    """

    def __init__(self, run: RunConfig) -> None:
        self._run = run
        self._judges: dict[Any, Judge] = {}
        self._parts: dict[MixtureSource, Dataset] = {}
        self._weights: dict[MixtureSource, float] = {}
        try:
            for place, part in enumerate(parts_of(run)):
                source = MixtureSource(part.name, part.heldout_weight)
                self._weights[source] = part.weight
                with _naming(place):
                    self._parts[source] = Dataset(part.run, source=source, judge_of=self._judge)
            heldout = {key for each in self._parts.values() for key in each.heldout_keys}
            for place, dataset in enumerate(self._parts.values()):
                with _naming(place):
                    dataset.leave_out(heldout)
        except BaseException:  # an interrupt, too: judges have processes of their own
            self.close()
            raise
        first = next(iter(self._parts.values()))
        self.name = " + ".join(source.name for source in self._parts)
        self.tokenizer, self.stop_ids = first.tokenizer, first.stop_ids
        self.stops = first.stops
        self.record: Mapping[str, Any] = self._record()

    def train(self, seed: int) -> Mixed:
        weighed = ((part.train(seed), self._weights[name]) for name, part in self._parts.items())
        return Mixed(parts=tuple((prompts, weight) for prompts, weight in weighed if weight))

    def heldout(self, seed: int, count: int) -> tuple[Prompt, ...]:
        """Held-out prompts of each data set in proportion to its weight, as far as it has them."""
        counts = allotted(count, tuple(source.weight for source in self._parts))
        parts = zip(self._parts.values(), counts, strict=True)
        return tuple(prompt for part, most in parts for prompt in part.heldout(seed, most))

    def ask(self, prompt: Prompt, response_tokens: Tokens) -> Future[Verdict]:
        return self._of(prompt).ask(prompt, response_tokens)

    @property
    def judges(self) -> bool:
        """Whether there are reward functions."""
        return any(part.judges for part in self._parts.values())

    @property
    def ask_group(self) -> AskGroup | None:
        return self._ask_group if any(p.ask_group for p in self._parts.values()) else None

    def text(self, tokens: ArrayLike) -> str:
        return self.tokenizer.text(tokens)

    def close(self) -> None:
        for judge in self._judges.values():
            judge.close()

    def _of(self, prompt: Prompt) -> Dataset:
        assert prompt.source is not None
        return self._parts[prompt.source]

    def _ask_group(
        self, prompt: Prompt, responses: Sequence[Tokens], alone: Sequence[Future[Verdict]], /
    ) -> Future[Verdicts]:
        return self._of(prompt).judge_group(prompt, responses, alone)

    def _judge(self, functions: Sequence[RewardConfig], columns: Sequence[str]) -> Judge:
        """Judge shared by all data sets with the same functions and columns."""
        key = (repr(functions), tuple(columns))
        if key not in self._judges:
            run = self._run
            self._judges[key] = Judge(functions, run.rewards, columns=columns, seed=run.seed)
        return self._judges[key]

    def _record(self) -> Mapping[str, Any]:
        records = {source: part.record for source, part in self._parts.items()}
        digests = [
            [*source, self._weights[source], record["digest"]] for source, record in records.items()
        ]
        return {
            "source": self.name,
            **{
                name: sum(record[name] for record in records.values())
                for name in ("rows", "train", "heldout")
            },
            "prompt_tokens_max": max(r["prompt_tokens_max"] for r in records.values()),
            "stop_ids": list(self.stop_ids),
            "stop_strings": list(self.tokenizer.stop_strings.strings),
            "mixture": [
                {"name": source.name, "weight": self._weights[source], **record}
                for source, record in records.items()
            ],
            "digest": hashlib.sha256(repr(digests).encode()).hexdigest(),
        }


def dataset_of(run: RunConfig) -> Dataset | Mixture:
    """Open the data set or mixture of a run; the caller closes it. Raises ConfigError."""
    return Mixture(run) if run.data.mixture else Dataset(run)


@contextlib.contextmanager
def _naming(place: int) -> Iterator[None]:
    """Context in which errors about a data set name its entry."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"data.mixture[{place}]: {error}") from None
