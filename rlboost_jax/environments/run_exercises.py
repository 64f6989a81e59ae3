"""The exercises of a run, with an environment or without."""

from collections.abc import Callable
from pathlib import Path

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.data.open import open_exercises
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.settings.run_config import RunConfig


def exercises_of(
    run: RunConfig, *, note: Callable[[str], None], folder: Path | None = None
) -> Exercises:
    """Open the exercises of a run; the caller closes them. Raises ConfigError.

    Args:
        note: shows a line on the console.
        folder: of the run; None: hosts of environments are not let in.
    """
    if run.environment.name:
        return EpisodeExercises(run, note=note, folder=folder)
    return open_exercises(run)
