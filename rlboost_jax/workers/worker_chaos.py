"""Killing of environment workers at random times, as `fleet.chaos` does with servers."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import numpy as np

from rlboost_jax.providers.chaos import chaos_events
from rlboost_jax.settings.fleet_config import ChaosConfig


async def kill_workers(
    pids: Callable[[], Sequence[int]],
    *,
    per_minute: float,
    seed: int = 0,
    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
    kill: Callable[[int, int], None] = os.kill,
) -> None:
    """SIGKILL one of the workers, again and again, until it is cancelled.

    Times and choices are drawn from the seed. A process that is gone already is not killed.

    Args:
        pids: of the workers that there are now; children of this process, so that none of the
            numbers is another's by then.
        per_minute: rate; 0: nothing is done.
    """
    settings = ChaosConfig(
        enabled=True, seed=seed, kills_per_minute=per_minute, terms_per_minute=0, joins_per_minute=0
    )
    choices = np.random.default_rng([seed, 1])
    now = 0.0
    for event in chaos_events(settings):
        await sleep(event.seconds - now)
        now = event.seconds
        share = choices.random()  # drawn in any case: later ones do not depend on who is there
        if living := sorted(pids()):
            with contextlib.suppress(ProcessLookupError):
                kill(living[int(share * len(living))], signal.SIGKILL)
