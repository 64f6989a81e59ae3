"""TextArena: its games for one player.

    environment.name = "textarena"
    environment.options = {"game": "GuessTheNumber-v0"}

Example {"index": i} is the game under seed i, as `Game-v0` without a wrapper that says again what
was said before: an observation is what the game said since the last turn.
"""

import contextlib
import io
import re
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.environments.adapters.draws import OwnDraws
from rlboost_jax.environments.adapters.packages import imported, known, number_of
from rlboost_jax.environments.protocol import Step, Turn
from rlboost_jax.platform.mistakes import ConfigError

EXTRA: Final = "textarena"
INVALID_MOVE: Final = -1.0  # what the package gives for one by itself
_SUFFIXES: Final = ("-raw", "-train")


class TextArena:
    """One game of one player."""

    def __init__(self, game: str, options: dict[str, Any] | None = None, seed: int = 0) -> None:
        """
        Args:
            game: such as "Mastermind-v0-hard"; without -raw or -train.
            options: of the game; they replace the defaults of its name.
            seed: games of another seed are other ones.
        """
        arena = imported("textarena", extra=EXTRA)
        registry = imported("textarena.envs.registration", extra=EXTRA).ENV_REGISTRY
        known("game", game, [name for name in registry if not name.endswith(_SUFFIXES)])
        self._arena, self._seed = arena, seed
        raw = f"{game}-raw" if f"{game}-raw" in registry else game
        try:
            with OwnDraws(0).used(), _quiet():
                self._game = arena.make(raw, **(options or {}))
        except Exception as error:  # words to download, a key to a service, another Python
            raise ConfigError(
                f"environment.options: game {game!r} cannot be made here: "
                f"{type(error).__name__}: {_line(error)}"
            ) from None
        self._wraps = registry[game].default_wrappers or ()
        self._draws = OwnDraws(0)

    def reset(self, example: Mapping[str, Any], seed: int) -> str:
        """Start the game and return its first observation.

        Raises:
            ValueError: `index` is none, or the game is not for one player.
        """
        number = (number_of(example, seed) + self._seed * 1_000_003) % 2**32
        self._draws = OwnDraws(number)
        with self._draws.used(), _quiet():
            self._game.reset(num_players=1, seed=number)
            if not isinstance(self._game.state, self._arena.SinglePlayerState):
                raise ValueError(f"{self._game.env_id} is a game for several players")
            return self._said()

    def step(self, turn: Turn) -> Step:
        """Make a move; the reward comes with the last one."""
        action = turn.text
        if any(issubclass(w, self._arena.wrappers.ActionFormattingWrapper) for w in self._wraps):
            action = action if "[" in action or "]" in action else f"[{action.strip()}]"
        with self._draws.used(), _quiet():
            done, _ = self._game.step(action)
            if not done:
                return Step(observation=self._said())
            rewards, infos = self._game.close()
        info = (infos or {}).get(0, {})
        reward = _number((rewards or {}).get(0, 0.0), str(info.get("reason", "")))
        return Step(
            reward=reward,
            done=True,
            metrics={
                "solved": float(reward >= 1),
                "game_turns": float(info.get("turn_count", 0)),
                "invalid_move": float(bool(info.get("invalid_move", False))),
            },
        )

    def _said(self) -> str:
        """New text of the game that the policy did not say itself.

        A message that is no text is its own move, in games that have the arguments in another
        order.
        """
        player, messages = self._game.get_observation()
        others = (said for sender, said, _ in messages if sender != player)
        return "\n".join(said for said in others if isinstance(said, str))


def _number(reward: Any, reason: str) -> float:
    """Reward of a game as a number. Some games swap an invalid move's reward and its reason."""
    if isinstance(reward, str):
        said = re.fullmatch(r"Invalid Move: (-?[\d.]+(?:e-?\d+)?)", reason)
        return float(said.group(1)) if said else INVALID_MOVE
    return float(reward)


def _quiet() -> contextlib.AbstractContextManager[Any]:
    """Suppress what games print about a move."""
    return contextlib.redirect_stdout(io.StringIO())


def _line(error: Exception) -> str:
    said = [line.strip("* ") for line in str(error).splitlines() if line.strip("* ")]
    return said[0] if said else "no reason given"
