"""The checks of `config.environment`, before anything of it is imported."""

import re
from collections.abc import Iterator
from typing import Final

from rlboost_jax.platform.mistakes import suggestion
from rlboost_jax.platform.outside_code import PATH
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT

# By name, what they are: (module:factory). `rlboost_jax/environments/factories.py` opens them.
_ADAPTERS: Final = "rlboost_jax.environments.adapters"
_BUILT_IN: Final = "rlboost_jax.environments.builtin"
BUILT_IN_ENVIRONMENTS: Final[dict[str, str]] = {
    "chat_tools": f"{_BUILT_IN}.chat_tools:ChatTools",
    "drawers": f"{_BUILT_IN}.drawers:Drawers",
    "gateway": "rlboost_jax.gateway.gateway_environment:Gateway",
    "higher_lower": f"{_BUILT_IN}.higher_lower:HigherLower",
    "openenv": f"{_ADAPTERS}.openenv:OpenEnv",
    "reasoning_gym": f"{_ADAPTERS}.reasoning_gym:ReasoningGym",
    "skyrl_gym": f"{_ADAPTERS}.skyrl_gym:SkyRLGym",
    "textarena": f"{_ADAPTERS}.textarena:TextArena",
    "tinker_cookbook": f"{_ADAPTERS}.tinker_cookbook:TinkerCookbook",
    "verifiers": f"{_ADAPTERS}.verifiers:Verifiers",
}
MAX_TURNS: Final = 2**15
_ADDRESS: Final = re.compile(r".+:(\d{1,5})")


def environment_mistakes(config: RunConfig) -> Iterator[str]:
    """Yield a line per mistake, of runs with an environment and without."""
    environment, task = config.environment, config.task.name
    if not environment.name:
        if task == ENVIRONMENT:
            yield (
                "environment.name is '', and task.name is 'environment'; name one, such as "
                "'package.module:factory'"
            )
        if environment.options:
            yield (
                f"environment.options is {environment.options}, of no environment; name it "
                "(environment.name), or leave them out"
            )
        return
    if task not in (DATASET, ENVIRONMENT):
        yield (
            f"environment.name is {environment.name!r}, and task {task!r} has no episodes; set "
            f"task.name to {ENVIRONMENT!r}, or to {DATASET!r} where its examples are rows of data"
        )
    yield from name_mistakes(environment.name)
    address = _ADDRESS.fullmatch(environment.listen)
    if environment.listen and not (address and 0 < int(address[1]) < 2**16):
        yield (
            f"environment.listen is {environment.listen!r}; give HOST:PORT with a port from 1 to "
            "65535, such as '0.0.0.0:7070'"
        )
    if not (environment.workers or environment.listen):
        yield (
            "environment.workers is 0, and no other host can come; raise it, or set "
            "environment.listen"
        )
    if environment.max_turns > MAX_TURNS:
        yield f"environment.max_turns is {environment.max_turns}; choose {MAX_TURNS} or less"
    if environment.max_turns > 1 and not environment.max_given_tokens:
        yield (
            f"environment.max_given_tokens is 0, and an episode has up to {environment.max_turns} "
            "turns (environment.max_turns); give a slot room for what the environment says, such "
            "as 512"
        )
    if any(function.per == "group" for function in config.rewards.functions):
        yield (
            "rewards.functions has one with per 'group', which compares responses of one turn; "
            "leave it out, or set environment.name to ''"
        )
    if environment.turn_tokens > config.sampling.max_response_tokens:
        yield (
            f"environment.turn_tokens is {environment.turn_tokens}, more than all turns have "
            f"together (sampling.max_response_tokens, {config.sampling.max_response_tokens}); "
            "lower it, or raise that"
        )


def name_mistakes(name: str) -> Iterator[str]:
    """Yield a line per mistake in `environment.name` that shows without an import."""
    if name in BUILT_IN_ENVIRONMENTS or PATH.fullmatch(name):
        return
    if BUILT_IN_ENVIRONMENTS:
        hint = suggestion(name, BUILT_IN_ENVIRONMENTS)
    else:
        hint = "there is none built in"
    yield f"environment.name {name!r} does not exist; {hint}; yours is 'package.module:factory'"
