"""Play an environment: you are the policy.

    rlboost play --config=my_run.py
    rlboost play --config=my_run.py --example=3 --seed=7 < turns.txt

Shows what the policy reads, and takes a line for each turn (`\\n` in it is a new line) until the
episode is done or the lines are. Tools are called as in a run. Without a tokenizer a turn is words
of the small vocabulary, such as `5 [12] # 7`.
"""

import asyncio
import functools
import sys
from collections.abc import Iterator
from typing import Any

from absl import app, flags
from ml_collections import config_flags

from rlboost_jax.environments.episode_exercises import seed_of
from rlboost_jax.environments.player import Player, example_of
from rlboost_jax.environments.prompt_renderer import UnencodableObservation
from rlboost_jax.environments.runner import EnvironmentFailed
from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.config_loading import run_config

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_EXAMPLE = flags.DEFINE_string(
    "example", "0", "Number of a training example, or a JSON object in place of one."
)
_SEED = flags.DEFINE_integer("seed", None, "Of the episode; the run's own if not given.")


def typed() -> Iterator[str]:
    """Lines of the terminal, or of a file in its place."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        yield line.rstrip("\n")


async def _show(player: Player, example: Any, seed: int) -> None:
    async for line in player.lines(example, seed, typed()):
        print(line, flush=True)


def main(argv: list[str]) -> None:
    try:
        if _CONFIG.value is None:
            raise ConfigError("no --config given; name the file of a run with an environment")
        run = run_config(_CONFIG.value)
        player, example = Player(run), example_of(run, _EXAMPLE.value)
        seed = seed_of(run.seed, example) if _SEED.value is None else _SEED.value
        asyncio.run(_show(player, example, seed))
    except (EnvironmentFailed, UnencodableObservation) as error:
        exits.leave(f"error: the environment failed: {error}", exits.MISTAKE)
    except (ConfigError, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    except KeyboardInterrupt:
        exits.leave("interrupted", exits.by_signal(2))


if __name__ == "__main__":
    app.run(main, flags_parser=functools.partial(parse, command="play"))
