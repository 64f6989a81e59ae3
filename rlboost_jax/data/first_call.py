"""The first call of a run's own reward functions, before there is a response: for a dry run."""

from collections.abc import Iterator

import numpy as np

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.settings.data_presets import BUILT_IN_REWARDS
from rlboost_jax.settings.run_config import RunConfig


def first_call_lines(run: RunConfig, exercises: Exercises) -> Iterator[str]:
    """Judge an empty response to the first prompt; yield a line for each function of the user's.

    A function may well refuse an empty response, so a failure is a line and no error. Functions
    that wait for others (`http`, those with `max_concurrent`) are not called.
    """
    functions = run.rewards.functions
    waiting = any(f.name == "http" or f.max_concurrent for f in functions)
    own = [f.shown_as for f in functions if f.name not in BUILT_IN_REWARDS and f.per == "response"]
    prompts = exercises.train(run.seed)
    if waiting or not own or not len(prompts):
        return
    empty = np.array(exercises.stop_ids[:1], np.int32)
    verdict = exercises.ask(prompts[0], empty).result()
    for name in own:
        if fault := verdict.faults.get(name):
            yield f"{name!r} fails for an empty response to the first prompt: {fault}"
        else:
            value = verdict.components.get(name)
            said = "gives no reward for" if value is None else f"gives {value:g} for"
            yield f"{name!r} {said} an empty response to the first prompt"
