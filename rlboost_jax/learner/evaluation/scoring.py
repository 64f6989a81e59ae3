"""Schedule of a run's evaluations, and use of their scores."""

import math
from collections.abc import Callable

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.evaluation.measurement import Measurement, Score
from rlboost_jax.learner.stream.lag import lag_of
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.routing import Routing
from rlboost_jax.settings.run_config import RunConfig


class Scoring:
    """Evaluations of one run, always on the same held-out prompts."""

    def __init__(
        self,
        run: RunConfig,
        exercises: Exercises,
        *,
        best: BestCheckpoint | None,
        note: Callable[[str], None],
        routing: Routing | None = None,
    ) -> None:
        """Take the held-out prompts of the run.

        Args:
            best: is offered every checkpoint that is measured.
            note: shows a line on the console.
            routing: of the routes that come with tokens; None: none do.
        """
        self._lag = lag_of(run)
        self._run, self._exercises, self._best, self._note = run, exercises, best, note
        self._routing = routing
        self._prompts = exercises.heldout(run.seed, run.evaluation.num_prompts)

    @property
    def on(self) -> bool:
        return self._run.evaluation.every_steps > 0

    def of_step(self, step: int) -> Measurement | None:
        """Evaluation to run beside a step; None if none is due.

        What is measured is the version that samples the step, beside the first step that it
        samples: every `evaluation.every_steps` versions, and that of the last step.
        """
        every, last = self._run.evaluation.every_steps, self._run.num_steps - 1
        version = self._lag.measured_by(Batch(step))
        if not every or version is None or not (version % every == 0 or step == last):
            return None
        return self._measurement(step, version, self._run.algorithm.group_size)

    def of_last_version(self) -> Measurement | None:
        """Evaluation of the final version, to run by itself after all steps: full groups first."""
        if not self.on:
            return None
        group_size = min(self._run.evaluation.samples, self._run.algorithm.group_size)
        return self._measurement(self._run.num_steps, self._run.num_steps, group_size)

    def score(self, measurement: Measurement) -> Score:
        score, version = measurement.score(), measurement.version
        measured = not math.isnan(score.accuracy)  # else nothing is said of any response
        if measured and self._best is not None and self._best.offer(version, score.accuracy):
            self._note(f"checkpoint {version} is the best so far: accuracy {score.accuracy:.3f}")
        if score.failures:
            self._note(
                f"evaluation: reward functions failed for {score.failures} of "
                f"{score.prompts * score.samples} responses"
            )
        if score.left_out:
            self._note(
                f"evaluation: nobody knows the reward of {score.left_out} of "
                f"{score.prompts * score.samples} responses (the environment failed, or no reward "
                "function says anything), which do not count"
            )
        return score

    def _measurement(self, step: int, version: int, group_size: int) -> Measurement:
        return Measurement(
            self._exercises,
            self._prompts,
            self._run.evaluation,
            step=step,
            version=version,
            max_tokens=self._run.sampling.max_response_tokens,
            group_size=group_size,
            turn_tokens=self._run.environment.turn_tokens,
            check_size=self._run.learner.micro_batch_prompts * self._run.algorithm.group_size,
            routing=self._routing,
        )
