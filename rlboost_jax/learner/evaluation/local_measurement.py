"""Evaluation by an engine of this process, with or without an environment.

Responses are those of the run's own evaluation after as many updates, wherever both are greedy or
draw the same noise.
"""

import contextlib
import secrets
import tempfile
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from rlboost_jax.data.exercises import Exercises, Prompt
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.learner.episodes.assembly import DeliveredEpisode
from rlboost_jax.learner.episodes.collector import Judge, judge_of
from rlboost_jax.learner.evaluation.local_batch import EvaluationEngine, LocalBatch
from rlboost_jax.learner.evaluation.measurement import Measurement, Score
from rlboost_jax.messages import BeginBatch, Parked
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.identities import Batch, Version
from rlboost_jax.settings.run_config import RunConfig


def measured(run: RunConfig, engine: EvaluationEngine, exercises: Exercises, *, step: int) -> Score:
    """Score the engine's version on the held-out prompts of a run.

    Args:
        step: updates made; names the noise.

    Raises:
        EpisodeFailed: an environment failed, and its settings say to stop then.
        WorkersLost: its processes end as soon as they are started.
    """
    failure: Future[None] = Future()
    verdicts: list[Future[Verdict]] = []
    with contextlib.ExitStack() as stack:
        episodes = exercises.service if isinstance(exercises, EpisodeExercises) else None
        group_size = min(run.evaluation.samples, run.algorithm.group_size)
        measurement = Measurement(
            exercises,
            exercises.heldout(run.seed, run.evaluation.num_prompts),
            run.evaluation,
            step=step,
            max_tokens=run.sampling.max_response_tokens,
            group_size=group_size,
            turn_tokens=run.environment.turn_tokens,
            judge=_noting(judge_of(exercises), verdicts),
        )
        (prompts, samples), *_ = measurement.parts()
        batch = LocalBatch(
            engine,
            BeginBatch(
                batch=Batch(step),
                version=Version(step),
                params_digest="",
                seed=run.seed,
                group_size=samples,
                sampling=measurement.sampling,
                prompts=prompts,
                turns=run.environment.max_turns if episodes else 1,
            ),
            extensions=measurement.extensions()[1:],  # what groups leave over of each prompt
            ask=episodes.take if episodes else _nobody,
        )

        def fail(error: Exception) -> None:
            if not failure.done():
                failure.set_exception(error)
            batch.fail(error)

        if episodes is not None:
            # What they say is kept in a folder that goes: nobody resumes this. Calls have names of
            # their own, for those of the run are others.
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            episodes.connect(Path(folder), secrets.token_hex(8), answer=batch.answer, fail=fail)
            episodes.begin(Batch(step), lambda work: measurement.prompt_of(work.prompt))
        for rollout in batch.results():
            measurement.take(rollout)
        _await(verdicts, failure)
        return measurement.score()


def _nobody(parked: Parked) -> None:
    raise AssertionError("a response of one turn is never parked")


def _noting(judge: Judge, verdicts: list[Future[Verdict]]) -> Judge:
    def noted(prompt: Prompt, episode: DeliveredEpisode) -> Future[Verdict]:
        verdicts.append(judge(prompt, episode))
        return verdicts[-1]

    return noted


def _await(verdicts: Sequence[Future[Verdict]], failure: "Future[None]") -> None:
    """Wait for all verdicts. Raises what keeps them from arriving."""
    for verdict in verdicts:
        futures: set[Future[Any]] = {verdict, failure}
        wait(futures, return_when=FIRST_COMPLETED)
        if failure.done():
            failure.result()
