"""The training loop: begin a step, train what streams in, update, publish, again.

A version is published at the end of the step that made it, so that servers fetch it while
the row is written, the checkpoint begun and, now and then, held-out accuracy measured. Only
then does the next step begin, with the reserved engine ready for its seeding window.

Invariants:
- the parameters of step s have been updated by s batches, and every token of step s was
  sampled from just these;
- the updates of a step are made of all its prompts × group samples, or not at all;
- a checkpoint holds what the next step needs; what happened after it can be done again and,
  in deterministic mode, gives the same bits.
"""

import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from rlboost_jax import messages
from rlboost_jax.config.records import RunConfig
from rlboost_jax.data.prompts import Prompt, PromptStream, heldout
from rlboost_jax.data.tasks import Task
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.critic import CriticStep
from rlboost_jax.learner.doubts import tolerated_gap
from rlboost_jax.learner.estimates import Estimates
from rlboost_jax.learner.link import ManagerLink
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngine
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.streaming import stream_step
from rlboost_jax.learner.trajectory import trajectories_digest
from rlboost_jax.learner.updates import BatchUpdates, Learners
from rlboost_jax.models.params import Params, params_digest


class TrainingLoop:
    """The steps of a run, one after the other."""

    def __init__(
        self,
        run: RunConfig,
        *,
        task: Task,
        learner: LearnerStep,
        state: TrainState,
        reference: Params | None,
        link: ManagerLink,
        reserved: ReservedEngine,
        publisher: Publisher,
        checkpoints: Checkpoints,
        critic: CriticStep | None = None,
    ):
        self._run, self._task = run, task
        self.state = state
        self._learners = Learners(
            run=run,
            policy=learner,
            critic=critic,
            reference=reference,
            estimates=Estimates(
                algorithm=run.algorithm,
                max_response_tokens=run.sampling.max_response_tokens,
                stop_ids=tuple(task.stop_ids),
            ),
            tolerated_gap=tolerated_gap(run, learner.mesh.devices.flat[0].platform),
        )
        self._link, self._reserved = link, reserved
        self._publisher, self._checkpoints = publisher, checkpoints
        self._prompts = PromptStream(
            task, seed=run.seed, prompts_per_step=run.learner.prompts_per_step
        )
        self._heldout = heldout(task, run.seed, run.task.num_heldout)[: run.evaluation.num_prompts]
        self._sampling = messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(task.stop_ids),
        )
        self._window: messages.WindowState | None = None  # after the last step
        self._publish(int(state.step) // run.algorithm.updates_per_batch)
        self._lap = time.perf_counter()  # when the last step was over

    def step(self, step: int) -> dict[str, Any]:
        """Generate and train one step; returns its row of metrics.

        Its seconds follow on those of the step before, evaluation left out.

        Raises:
            StepNotWhole, NotFinite, GuardTripped: `state` is of no more use; the last
                checkpoint is.
        """
        accuracy, evaluation_seconds = self._evaluate(step)
        prompts = self._prompts.step(step)
        self._reserved.load(self._params, step, self._digest)
        self._begin(step, prompts)

        collector = StepCollector(
            step,
            version=step,
            prompts=[prompt.tokens for prompt in prompts],
            group_size=self._run.algorithm.group_size,
            reward=lambda prompt, tokens: self._task.reward(prompts[prompt].problem, tokens),
            estimate=self._learners.estimates.of_group,
        )
        updates = BatchUpdates(
            self._learners, self.state, step=step, checkpoint=self._checkpoints.latest
        )
        times = stream_step(self._link, collector, updates.micro_batches, updates.train)
        applying = time.perf_counter()
        self.state, figures = updates.finish(collector.trajectories(), host_params=self._params)
        train_seconds = times.training + time.perf_counter() - applying
        publish_seconds = self._publish(step + 1)

        report = self._link.trained(
            messages.StepTrained(
                step=step, train_wait_seconds=times.waiting, train_seconds=train_seconds
            )
        )
        self._window = report.window
        row = {
            "step": step,
            "version": step,
            "accuracy": accuracy,
            **_policy_metrics(collector, figures),
            "train_seconds": train_seconds,
            "train_wait_seconds": times.waiting,
            "publish_seconds": publish_seconds,
            **_report_metrics(report),
            "trajectories_digest": trajectories_digest(collector.trajectories()),
            "params_digest": self._digest,
        }
        before, self._lap = self._lap, time.perf_counter()
        return {**row, "step_seconds": self._lap - before - evaluation_seconds}

    def save(self, step: int) -> None:
        """Begin the checkpoint to go on with `step` from, where one is due.

        Once it is durable no row of an earlier step is written any more.
        """
        if step % self._run.checkpoint.every_steps == 0 or step == self._run.num_steps:
            self._checkpoints.save(step, self.state, checkpoint_extra(self._window))

    def final_accuracy(self, version: int) -> float | None:
        """Of the parameters after the last update; None where nothing is evaluated."""
        if not self._run.evaluation.every_steps:
            return None
        return self._reserved.accuracy(self._params, version, self._task, self._heldout)

    def _publish(self, version: int) -> float:
        """Copy the parameters to the host, where engines and snapshots are made of them.

        Returns:
            seconds that the copy took; the digest and the disk are beside the point.
        """
        since = time.perf_counter()
        self._params = jax.device_get(self.state.params)
        seconds = time.perf_counter() - since
        self._digest = params_digest(self._params)
        if version < self._run.num_steps:  # else no step needs it
            self._publisher.submit(version, self._params, self._digest)
        return seconds

    def _begin(self, step: int, prompts: tuple[Prompt, ...]) -> None:
        self._link.begin_step(
            messages.BeginStep(
                step=step,
                version=step,
                params_digest=self._digest,
                seed=self._run.seed,
                group_size=self._run.algorithm.group_size,
                sampling=self._sampling,
                prompts=tuple(
                    messages.PromptRequest(prompt=i, tokens=messages.pack_tokens(prompt.tokens))
                    for i, prompt in enumerate(prompts)
                ),
            )
        )

    def _evaluate(self, step: int) -> tuple[float | None, float]:
        """Accuracy before the step, where it is due, and the seconds that this took."""
        every = self._run.evaluation.every_steps
        if not every or (step % every and step != self._run.num_steps - 1):
            return None, 0.0
        since = time.perf_counter()
        accuracy = self._reserved.accuracy(self._params, step, self._task, self._heldout)
        return accuracy, time.perf_counter() - since


def checkpoint_extra(window: messages.WindowState | None) -> dict[str, Any]:
    """What a checkpoint holds besides arrays. The prompt cursor is the step itself."""
    return {
        "window": None
        if window is None
        else {
            "seconds": window.seconds,
            "memory": {str(count): seconds for count, seconds in window.memory.items()},
            "instance_cap": window.instance_cap,
        },
    }


def window_of(extra: Mapping[str, Any]) -> messages.WindowState | None:
    """The inverse of `checkpoint_extra`, for the controller's state."""
    window = extra["window"]
    if window is None:
        return None
    return messages.WindowState(
        seconds=window["seconds"],
        memory={int(count): seconds for count, seconds in window["memory"].items()},
        instance_cap=window["instance_cap"],
    )


def _policy_metrics(collector: StepCollector, figures: Mapping[str, float]) -> dict[str, Any]:
    """Args:
    figures: of `BatchUpdates.finish`.
    """
    trajectories = collector.trajectories()
    rewards = np.array([t.reward for t in trajectories])
    lengths = np.array([len(t.response_tokens) for t in trajectories])
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "loss": figures["loss"],
        "kl": figures["kl"],
        "entropy": figures["entropy"],
        "clip_fraction": figures["clipped"],
        "max_logprob_gap": figures["max_logprob_gap"],
        "response_tokens": int(lengths.sum()),
        "response_length_mean": float(lengths.mean()),
        "response_length_max": int(lengths.max()),
        "corrected_fraction": figures.get("corrected"),
        "value_loss": figures.get("value_loss"),
    }


def _report_metrics(report: messages.StepReport) -> dict[str, Any]:
    names = (
        "rollout_seconds",
        "remote_wait_seconds",
        "seeding_window_seconds",
        "instances_mean",
        "instances_joined",
        "instances_lost",
        "requests_migrated",
        "tokens_generated",
        "tokens_delivered",
        "tokens_lost",
        "tokens_prefilled_again",
        "tokens_reserved",
        "tokens_preemptible",
        "cost_dollars",
    )
    cost = report.cost_dollars
    return {
        **{name: getattr(report, name) for name in names},
        "tokens_per_dollar": report.tokens_delivered / cost if cost > 0 else None,
    }
