"""tinker-cookbook: environments out of its data sets, in tokens.

    environment.name = "tinker_cookbook"
    environment.options = {
        "builder": "tinker_cookbook.recipes.math_rl.arithmetic_env:ArithmeticDatasetBuilder",
        "builder_options": {"model_name_for_tokenizer": "…", "renderer_name": "qwen3", …},
    }

Its environments render conversations themselves, so the renderer must be the run's model's. They
say the whole conversation each time; here only what is new goes on, and one that does not go on
with the tokens that were sampled is refused. Example {"index": i} is problem i of the data set for
training, or of the other one.
"""

import importlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rlboost_jax.environments.adapters.draws import OwnDraws
from rlboost_jax.environments.adapters.packages import known, place_of
from rlboost_jax.environments.protocol import Step, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.mistakes import ConfigError

# No extra of ours: its bounds on transformers do not go with those of our lock.
INSTALL: Final = "in an environment of its own, `pip install tinker-cookbook`"


class TinkerCookbook:
    """One environment of a group."""

    def __init__(self, builder: str, builder_options: dict[str, Any] | None = None) -> None:
        """
        Args:
            builder: "module:class" of an RLDatasetBuilder.
            builder_options: its fields.
        """
        try:
            importlib.import_module("tinker_cookbook.rl.types")
        except ImportError as error:
            raise ConfigError(
                f"environment.name 'tinker_cookbook' cannot import it: {error}; {INSTALL}"
            ) from None
        self._builder = _builder(builder, json.dumps(builder_options or {}, sort_keys=True))
        self._key = (builder, json.dumps(builder_options or {}, sort_keys=True))
        self._group: Any = None
        self._env: Any = None
        self._said: list[int] = []

    async def reset(self, example: Mapping[str, Any], seed: int) -> NDArray[np.int32]:
        """Return the prompt's token ids. Raises ValueError if there is no such problem."""
        train, test = await _datasets(*self._key)
        index, heldout = place_of(example, seed)
        if (dataset := test if heldout else train) is None:
            raise ValueError(f"{self._key[0]} has no data set for evaluation")
        with OwnDraws(index).used():
            batch: Sequence[Any] = dataset.get_batch(0)
            number, place = divmod(index % (len(dataset) * len(batch)), len(batch))
            self._group = dataset.get_batch(number)[place] if number else batch[place]
        _check_rewards(self._group)
        self._env = (await self._group.make_envs())[0]
        first = await self._env.initial_observation()
        if not isinstance(first, tuple):
            raise ValueError(f"problem {index}: its first prompt is over the builder's own limit")
        self._said = list(first[0].to_ints())
        return np.asarray(self._said, np.int32)

    async def step(self, turn: Turn) -> Step:
        """Return its answer to a turn. Raises ValueError if it rewrites the turn."""
        result = await self._env.step(list(turn.tokens), extra={"stop_reason": turn.finish})
        reward, done = float(result.reward), bool(result.episode_done)
        if done:
            numbers = {str(name): float(value) for name, value in result.metrics.items()}
            solved = numbers.get("correct", float(reward >= 1))
            return Step(reward=reward, done=True, metrics=numbers | {"solved": solved})
        before, now = [*self._said, *turn.tokens], list(result.next_observation.to_ints())
        if now[: len(before)] != before:
            raise ValueError(
                "the environment renders a turn with other tokens than were sampled; take a "
                "renderer that keeps them, or an environment of one turn"
            )
        self._said = now
        return Step(observation=np.asarray(now[len(before) :], np.int32), reward=reward)

    async def close(self) -> None:
        """Release the group's resources."""
        if self._group is not None:
            await self._group.cleanup()


def _builder(path: str, options: str) -> Any:
    """Build the data set builder. Raises ConfigError if it does not exist or has other fields."""
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(f"environment.options: builder {path!r}: {error}") from None
    known("builder", name, (n for n in vars(module) if n.endswith("DatasetBuilder")))
    try:
        return getattr(module, name)(**foreign_json.decode(options, "environment.options", dict))
    except Exception as error:  # of chz, which has its own
        raise ConfigError(f"environment.options: builder {path!r}: {error}") from None


_made: dict[tuple[str, str], tuple[Any, Any]] = {}


async def _datasets(path: str, options: str) -> tuple[Any, Any]:
    """Data sets for training and for evaluation, shared by all episodes of a process."""
    if (path, options) not in _made:
        _made[path, options] = await _builder(path, options)()
    return _made[path, options]


def _check_rewards(group: Any) -> None:
    """Raise ValueError if rewards are of a group, whose members are not in one process."""
    types = importlib.import_module("tinker_cookbook.rl.types")
    own = type(group).compute_group_rewards
    problem = importlib.import_module("tinker_cookbook.rl.problem_env").ProblemGroupBuilder
    if own not in (types.EnvGroupBuilder.compute_group_rewards, problem.compute_group_rewards):
        raise ValueError(f"{type(group).__name__} rewards groups, and a group is not in one place")
