"""reasoning-gym: generators of problems, each with its verifier; one turn an episode.

    environment.name = "reasoning_gym"
    environment.options = {"dataset": "chain_sum", "config": {"max_terms": 3}}

Example {"index": i} is problem i of the generator under its seed. Training and evaluation are apart
by what is asked, whatever the indices: a question's digest says which of both it is for.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from rlboost_jax.environments.adapters.draws import OwnDraws
from rlboost_jax.environments.adapters.packages import imported, is_heldout, known, number_of
from rlboost_jax.environments.protocol import Message, Step, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import ConfigError

EXTRA: Final = "reasoning-gym"
NOT_REPEATING: Final = frozenset({"codeio"})  # what it expects holds seconds that a clock measured
HELDOUT_OF: Final = 8  # one question in so many is for evaluation
_STRIDE: Final = 7919  # to another problem where one is for the other side; a prime
_MOST_TRIES: Final = 512


class ReasoningGym:
    """One problem of one generator."""

    def __init__(
        self,
        dataset: str,
        config: dict[str, Any] | None = None,
        size: int = 10_000,
        seed: int = 0,
        system_prompt: str = "default",
        answer_tag: str = "answer",
        allow_not_repeating: bool = False,
    ) -> None:
        """
        Args:
            dataset: name of the generator; "composite" takes `config.datasets`.
            config: its settings, but for `size` and `seed`.
            size: problems it makes; after them it begins anew.
            system_prompt: a name of `reasoning_gym.utils.SYSTEM_PROMPTS`, a text, or "": none.
            answer_tag: what encloses the answer in a turn; "": the whole turn is it.
            allow_not_repeating: take a generator whose entries differ from one process to the
                next. An episode that is made again may then be judged otherwise.
        """
        gym = imported("reasoning_gym", extra=EXTRA)
        utils = imported("reasoning_gym.utils", extra=EXTRA)
        known("dataset", dataset, gym.factory.DATASETS)
        parts = {dataset} | {str(each.get("name")) for each in (config or {}).get("datasets", ())}
        if (odd := sorted(parts & NOT_REPEATING)) and not allow_not_repeating:
            raise ConfigError(
                f"environment.options: dataset {odd[0]!r} makes other problems when it is made "
                "again; choose another one, or set allow_not_repeating"
            )
        self._dataset = _dataset(dataset, json.dumps(config or {}, sort_keys=True), size, seed)
        self._system = utils.SYSTEM_PROMPTS.get(system_prompt, system_prompt)
        self._extract, self._tag = utils.extract_answer, answer_tag
        self._entry: dict[str, Any] = {}

    def reset(self, example: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Return the question.

        Raises ValueError if `index` is invalid or no problem is left for it.
        """
        self._entry = self._problem(number_of(example, seed), is_heldout(example))
        question: Message = {"role": "user", "content": self._entry["question"]}
        return (
            ({"role": "system", "content": self._system}, question) if self._system else (question,)
        )

    def step(self, turn: Turn) -> Step:
        """Score the answer by the generator's verifier, 0 to 1."""
        answer = self._extract(turn.text, tag_name=self._tag) if self._tag else turn.text.strip()
        score, unreadable = 0.0, False
        if answer:
            try:
                score = float(self._dataset.score_answer(answer, self._entry))
            except Exception:  # some verifiers raise at an answer of another form: it is wrong
                unreadable = True
        return Step(
            reward=score,
            done=True,
            metrics={
                "solved": float(score >= 1),
                "answered": float(bool(answer)),
                "unreadable": float(unreadable),
            },
        )

    def _problem(self, index: int, heldout: bool) -> dict[str, Any]:
        size = len(self._dataset)
        for attempt in range(_MOST_TRIES):
            place = (index + attempt * _STRIDE) % size
            with OwnDraws(place).used():  # list_functions draws from the process's own
                entry: dict[str, Any] = self._dataset[place]
            digest = hashlib.sha256(entry["question"].encode()).digest()
            if (digest[0] % HELDOUT_OF == 0) == heldout:
                return entry
        kind = "evaluation" if heldout else "training"
        raise ValueError(
            f"none of {_MOST_TRIES} problems is for {kind}: the generator has too few; raise "
            "environment.options size, or choose a config with more of them"
        )


@functools.cache
def _dataset(name: str, config: str, size: int, seed: int) -> Any:
    """Generator shared by all episodes of a process: some read word lists when created."""
    gym = imported("reasoning_gym", extra=EXTRA)
    values = foreign_json.decode(config, "environment.options", dict)
    known_fields = {f.name for f in fields(gym.factory.DATASETS[name][1])} - {"size", "seed"}
    for value in values:
        known(f"config of {name}", value, known_fields)
    if name == "composite":
        spec = imported("reasoning_gym.composite", extra=EXTRA).DatasetSpec
        values["datasets"] = [
            spec(**{"weight": 1.0, "config": {}} | each) for each in values.get("datasets", [])
        ]
    try:
        return gym.create_dataset(name, size=size, seed=seed, **values)
    except (AssertionError, TypeError, ValueError) as error:
        raise ConfigError(f"environment.options: dataset {name!r}: {error}") from None
