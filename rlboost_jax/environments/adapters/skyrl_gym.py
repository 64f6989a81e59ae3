"""skyrl-gym: its environments, and those of others that are registered with it.

    environment.name = "skyrl_gym"
    environment.options = {"env": "gsm8k_multi_turn"}
    task.name = "dataset"                   # examples are rows, as SkyRL's own data sets have them

A row has what the environment takes as `extras` (reward_spec, max_turns, …) and `prompt`: messages,
a text, or these as JSON.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Final

from rlboost_jax.environments.adapters.packages import imported, known
from rlboost_jax.environments.observations import checked_observation
from rlboost_jax.environments.protocol import Message, Step, Turn
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import ConfigError

EXTRA: Final = "skyrl-gym"
# They ask a search service, or run what the policy writes: answers are the outside's, not a seed's.
NOT_REPEATING: Final = frozenset({"search", "searchcode"})


class SkyRLGym:
    """One episode of a registered environment."""

    def __init__(
        self,
        env: str,
        env_config: dict[str, Any] | None = None,
        register: str = "",
        allow_not_repeating: bool = False,
    ) -> None:
        """
        Args:
            env: its id.
            env_config: its settings; they replace its defaults.
            register: "module:class" of an environment of yours that goes by the id `env`.
            allow_not_repeating: take one that asks a service.
        """
        self._gym = imported("skyrl_gym", extra=EXTRA)
        if register and env not in self._gym.registry:
            self._gym.register(id=env, entry_point=register)
        known("env", env, self._gym.registry)
        if env in NOT_REPEATING and not allow_not_repeating:
            raise ConfigError(
                f"environment.options: env {env!r} asks a service, which may answer otherwise when "
                "the episode is made again; choose another one, or set allow_not_repeating"
            )
        self._id, self._config = env, _config(self._gym.registry[env], env_config or {})
        self._env: Any = None
        self._prompt: list[Any] = []
        self._given: list[Any] = []

    def reset(self, example: Mapping[str, Any], seed: int) -> tuple[Message, ...]:
        """Return the row's prompt, as the environment has it.

        Raises what the environment raises for a row that lacks something.
        """
        row = {name: _decoded(name, value) for name, value in example.items()}
        said = row.pop("prompt", ())
        messages = [{"role": "user", "content": said}] if isinstance(said, str) else list(said)
        self._env = self._gym.make(self._id, env_config=self._config, extras=row)
        self._prompt, _ = self._env.init(messages)
        self._given = [dict(message) for message in self._prompt]
        return tuple(Message(**message) for message in self._given)

    def step(self, turn: Turn) -> Step:
        """Return the environment's answer. Raises ValueError if it rewrites earlier messages."""
        out = self._env.step(turn.text)
        done = bool(out["done"])
        metrics = self._env.get_metrics() if done else {}
        if not done and list(self._prompt) != self._given:
            raise ValueError(
                f"{self._id} takes back what it said; an episode of it is several sequences, which "
                "no adapter makes"
            )
        reward = float(out["reward"])
        numbers = {
            str(name): float(value)
            for name, value in metrics.items()
            if isinstance(value, bool | int | float)
        }
        solved = {"solved": float(reward >= 1)} if done else {}
        observation = () if done else checked_observation(out["observations"], first=False)
        return Step(observation=observation, reward=reward, done=done, metrics=solved | numbers)

    def close(self) -> None:
        """Release databases and other resources."""
        if self._env is not None:
            self._env.close()


def _decoded(name: str, value: Any) -> Any:
    """Decode parts that a table keeps as JSON."""
    if isinstance(value, str) and name in ("prompt", "reward_spec", "reward_model", "extra_info"):
        try:
            decoded = foreign_json.decode(value, name, object)
        except Unreadable:
            return value
        return decoded if isinstance(decoded, dict | list) else value
    return value


def _config(spec: Any, given: Mapping[str, Any]) -> Any:
    """Default settings of an environment with some replaced: a record beside its class has them."""
    module = importlib.import_module(spec.entry_point.partition(":")[0])
    for name, found in vars(module).items():
        if dataclasses.is_dataclass(found) and name.endswith("EnvConfig"):
            for option in given:
                known("env_config", option, (f.name for f in dataclasses.fields(found)))
            kind: Any = found
            return kind(**given)
    return SimpleNamespace(**given)
