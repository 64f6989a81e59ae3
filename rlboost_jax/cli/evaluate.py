"""How good a run's policy is on held-out prompts.

    rlboost evaluate --workdir=RUN [--step=N | --best]
        [--prompts=N] [--samples=K --temperature=T]

Generates on this host's first device, greedily unless set otherwise, and prints one JSON object:
mean@k as `accuracy`, pass@k as `best` (of right and wrong answers). Works beside a living run.
In a run with an environment prompts are what it says to held-out examples; it is started here.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from absl import logging

from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError, Mistake
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.sampling_config import EvaluationConfig
from rlboost_jax.settings.validation.run_checks import check


def evaluate(
    workdir: str | Path,
    *,
    step: int | None = None,
    best: bool = False,
    exercises: Callable[[RunConfig], Any] | None = None,
    engine: Callable[[RunConfig], Any] | None = None,
    **changes: Any,
) -> dict[str, Any]:
    """Measure the policy after `step` updates, the newest checkpoint's if None.

    Args:
        best: take the checkpoint that `evaluation.keep_best` kept.
        exercises, engine: make what judges and what generates; None: as the run has them.
        changes: fields of `EvaluationConfig` in place of the run's.

    Returns:
        The fields of `learner.evaluation.Score`, and `step`.

    Raises:
        ConfigError, CheckpointNotFound: one line that says what to change.
    """
    workdir = Path(workdir)
    run = _changed(read_run_config(workdir), changes)  # before what takes seconds to import

    from rlboost_jax.environments.run_exercises import exercises_of
    from rlboost_jax.learner.checkpoints.base import read_policy
    from rlboost_jax.learner.checkpoints.best import FOLDER, best_step
    from rlboost_jax.learner.checkpoints.reading import newest_step
    from rlboost_jax.learner.evaluation.local_measurement import measured
    from rlboost_jax.platform import compile_cache
    from rlboost_jax.platform.jax_switches import check_switches
    from rlboost_jax.qualification.engine_start import reader_run
    from rlboost_jax.rollout.instance import engine_of

    check_switches()
    run = reader_run(run, say=logging.info)  # before the first device is touched
    folder = workdir / (FOLDER if best else "checkpoints")
    if best:
        kept = best_step(workdir)
        if kept is None:
            raise ConfigError(f"{folder} has no checkpoint; set evaluation.keep_best to True")
        step = kept[0]
    elif step is None:
        step = newest_step(folder)
    params = read_policy(run.model, workdir, folder, step)
    compile_cache.enable(run.compile_cache_dir)
    generator = (engine or engine_of)(run)
    generator.load(params, Version(step))
    judge = exercises(run) if exercises else exercises_of(run, note=logging.info)
    try:
        score = measured(run, generator, judge, step=step)
    finally:
        judge.close()
    return {"step": step, **asdict(score)}


def _changed(run: RunConfig, changes: dict[str, Any]) -> RunConfig:
    """Return the run with other fields of the evaluation, checked."""
    given = {name: value for name, value in changes.items() if value is not None}
    evaluation: EvaluationConfig = replace(run.evaluation, **given)
    environment = replace(  # on this host alone: others are the living run's
        run.environment,
        chaos_kills_per_minute=0.0,
        listen="",
        workers=max(1, run.environment.workers),
    )
    run = replace(run, evaluation=evaluation, environment=environment)
    check(run)
    return run


def main(
    argv: Sequence[str] | None = None, *, exercises: Callable[[RunConfig], Any] | None = None
) -> None:
    parser = command_parser.parser("evaluate", __doc__)
    parser.add_argument("--workdir", required=True, help="folder of a run, finished or not")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--step", type=int, help="updates made; the newest checkpoint if not given")
    which.add_argument("--best", action="store_true", help="the best checkpoint that was kept")
    parser.add_argument("--prompts", type=int, help="held-out prompts; the run's own if not given")
    parser.add_argument("--samples", type=int, help="responses to each prompt")
    parser.add_argument("--temperature", type=float, help="0 is greedy")
    arguments = parser.parse_args(argv)
    logging.set_verbosity(logging.ERROR)  # Orbax warns that it may read only
    try:
        score = evaluate(
            arguments.workdir,
            step=arguments.step,
            best=arguments.best,
            exercises=exercises,
            num_prompts=arguments.prompts,
            samples=arguments.samples,
            temperature=arguments.temperature,
        )
    except (Mistake, OSError) as error:
        exits.leave(f"error: {error}", exits.MISTAKE)
    print(json.dumps(score))


if __name__ == "__main__":
    main()
