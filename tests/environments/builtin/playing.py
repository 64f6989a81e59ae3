"""Whole episodes with a policy in Python, through the runner that real ones go through."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from rlboost_jax.chat.conversation_setup import conversation_of
from rlboost_jax.data.tokenizers import ByteTokenizer
from rlboost_jax.environments.environment_frames import Taken
from rlboost_jax.environments.protocol import Observation, Step, Turn
from rlboost_jax.environments.runner import EpisodeRunner, RememberedCalls
from rlboost_jax.settings.data_config import DataConfig
from tests.patience import PATIENCE_SECONDS

MOST_TURNS = 50
Policy = Callable[[Observation, int], Any]  # what is read, number of the turn → tokens or text


def played(
    make: Callable[[], Any],
    policy: Policy,
    example: dict[str, Any],
    seed: int = 0,
    *,
    known: RememberedCalls | None = None,
) -> tuple[Observation, list[Taken]]:
    """What the episode began with, and what followed each turn."""

    async def play() -> tuple[Observation, list[Taken]]:
        ledger = known or RememberedCalls()
        runner = EpisodeRunner(make, ledger=ledger, time_limit_seconds=PATIENCE_SECONDS)
        first = said = await runner.reset(example, seed)
        steps: list[Taken] = []
        while not steps or not (steps[-1].step.done or len(steps) >= MOST_TURNS):
            turn = turn_of(policy(said, len(steps)), len(steps))
            steps.append(await runner.step(turn, key=f"t{len(steps)}"))
            said = steps[-1].step.observation
        await runner.close()
        return first, steps

    return asyncio.run(play())


def turn_of(said: Any, index: int) -> Turn:
    if not isinstance(said, str):
        return Turn(index=index, tokens=tuple(int(t) for t in np.asarray(said)), text="")
    tokens = (*said.encode(), ByteTokenizer.END)
    read = BYTES.parse(tokens)
    return Turn(index=index, tokens=tokens, text=read.text, calls=read.calls)


BYTES = conversation_of(ByteTokenizer(DataConfig()), tool_format="json")


def last(steps: list[Taken]) -> Step:
    return steps[-1].step
