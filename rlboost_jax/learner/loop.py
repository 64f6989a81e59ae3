"""The training loop: begin a step, train what streams in, update, publish, again.

A version is published at the end of the step that made it, so that servers fetch it while
the row is written, the checkpoint begun and, now and then, held-out accuracy measured. Only
then does the next step begin, with the reserved engine ready for its seeding window.

Invariants:
- the parameters of step s have been updated s times, and every token of step s was sampled
  from just these;
- an update is made of all prompts × group samples of its step, or not at all;
- a checkpoint holds what the next step needs; what happened after it can be done again and,
  in deterministic mode, gives the same bits.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rlboost_jax import messages
from rlboost_jax.config.records import RunConfig
from rlboost_jax.data.prompts import Prompt, PromptStream, heldout
from rlboost_jax.data.tasks import Task
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.diagnosis import culprits
from rlboost_jax.learner.doubts import tolerated_gap
from rlboost_jax.learner.gradients import GradientSum
from rlboost_jax.learner.guards import (
    NotFinite,
    check_counted,
    check_guards,
    check_whole,
    kept,
)
from rlboost_jax.learner.link import ManagerLink
from rlboost_jax.learner.micro_batches import MicroBatches
from rlboost_jax.learner.packing import PackedBatch, pack, update_divisor
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngine
from rlboost_jax.learner.samples import sample_rows, samples_due
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.streaming import Doubt, StreamTimes, stream_step
from rlboost_jax.learner.trajectory import Group, Trajectory, trajectories_digest
from rlboost_jax.models.params import Params, params_digest
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.spans import Recorder, traced

LANE = "learner"  # of this thread in a profile


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
        show: Callable[[Sequence[SampleRow]], None] = lambda rows: None,
        spans: Recorder | None = None,
    ):
        """Args:
        show: is given the samples of every step that has any to show.
        spans: of this process.
        """
        self._spans = spans or Recorder()
        self._run, self._task = run, task
        self._learner, self.state, self._reference = learner, state, reference
        self._link, self._reserved = link, reserved
        self._publisher, self._checkpoints, self._show = publisher, checkpoints, show
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
        self._tolerated_gap = tolerated_gap(run, learner.mesh.devices.flat[0].platform)
        self._row_tokens = run.learner.row_tokens or run.slot_tokens
        self._window: messages.WindowState | None = None  # after the last step
        self._publish(int(state.step))
        self._lap = time.perf_counter()  # when the last step was over

    @traced("step", LANE)
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
            normalize_by_std=self._run.algorithm.normalize_by_std,
        )
        total, times = self._stream(collector)
        applying = time.perf_counter()
        sums, divisor = self._apply(step, total, collector)
        train_seconds = times.training + time.perf_counter() - applying
        if samples_due(self._run.observe, step):
            self._show(
                sample_rows(
                    step,
                    collector.trajectories(),
                    task=self._task,
                    num_prompts=self._run.observe.samples_prompts,
                )
            )
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
            **_policy_metrics(collector, sums, divisor),
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

    @traced("copy parameters", LANE)
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

    @traced("evaluate", LANE)
    def _evaluate(self, step: int) -> tuple[float | None, float]:
        """Accuracy before the step, where it is due, and the seconds that this took."""
        every = self._run.evaluation.every_steps
        if not every or (step % every and step != self._run.num_steps - 1):
            return None, 0.0
        since = time.perf_counter()
        accuracy = self._reserved.accuracy(self._params, step, self._task, self._heldout)
        return accuracy, time.perf_counter() - since

    @traced("stream", LANE)
    def _stream(self, collector: StepCollector) -> tuple[tuple[Params, Any], StreamTimes]:
        """The step's gradients and sums, of all its micro-batches."""
        micro_batches = MicroBatches(
            self._run.learner.prompts_per_step,
            self._run.learner.micro_batch_prompts,
            self._run.deterministic,
        )
        total = GradientSum(micro_batches.num_micro_batches, self._learner.combine)

        def train(index: int, groups: tuple[Group, ...]) -> list[Doubt]:
            members = [t for group in groups for t in group.trajectories]
            part = self._gradients(self.state.params, members)
            gap = float(part[1]["max_logprob_gap"])
            if not gap <= self._tolerated_gap:  # not a number is no small one
                doubts = self._doubts(groups)
                if doubts:
                    return doubts
            total.add(index, jax.block_until_ready(part))
            return []

        train = self._spans.timed("micro-batch", LANE, train)
        times = stream_step(self._link, collector, micro_batches, train)
        return total.total(), times

    def _doubts(self, groups: tuple[Group, ...]) -> list[Doubt]:
        """The responses of a micro-batch that were not sampled as their servers say."""
        doubts = []
        for trajectory in (t for group in groups for t in group.trajectories):
            (batch,) = self._pack([trajectory])
            gaps = np.asarray(self._learner.gaps(self.state.params, batch))[batch.response_mask]
            wrong = np.flatnonzero(~(gaps <= self._tolerated_gap))
            if wrong.size:
                doubts.append(
                    Doubt(
                        prompt=trajectory.prompt,
                        sample=trajectory.sample,
                        attempt=trajectory.attempt,
                        position=int(wrong[0]),
                        gap=float(gaps.max()),
                    )
                )
        return doubts

    def _gradients(self, params: Params, trajectories: Sequence[Trajectory]) -> tuple[Params, Any]:
        return self._learner.micro_batch(params, self._reference, self._pack(trajectories))

    def _pack(self, trajectories: Sequence[Trajectory]) -> list[PackedBatch]:
        return pack(
            trajectories,
            rows=self._run.learner.pack_rows,
            row_tokens=self._row_tokens,
            loss_aggregation=self._run.algorithm.loss_aggregation,
        )

    @traced("update", LANE)
    def _apply(
        self, step: int, total: tuple[Params, Any], collector: StepCollector
    ) -> tuple[Mapping[str, float], int]:
        """Update `state` with the gradients of a whole step; raises as `step` does."""
        gradients, sums = total
        host_sums = {name: float(value) for name, value in sums.items()}
        trajectories, learner = collector.trajectories(), self._run.learner
        check_whole(
            trajectories,
            step=step,
            num_prompts=learner.prompts_per_step,
            group_size=self._run.algorithm.group_size,
        )
        check_counted(trajectories, host_sums["tokens"], step=step)
        kl = {"kl": host_sums["kl"] / host_sums["tokens"]}
        check_guards(learner, kl, step=step, checkpoint=self._checkpoints.latest)
        divisor = update_divisor(trajectories, self._run.algorithm.loss_aggregation)
        state, metrics = self._learner.apply(self.state, gradients, np.float32(divisor))
        if not (bool(metrics["finite"]) and math.isfinite(host_sums["loss"])):
            del state, gradients  # room to look for the reason
            raise self._not_finite(step, host_sums["loss"], trajectories)
        norm = {"gradient_norm": float(metrics["gradient_norm"])}
        check_guards(learner, norm, step=step, checkpoint=self._checkpoints.latest)
        self.state = state
        return host_sums, divisor

    def _not_finite(self, step: int, loss: float, trajectories: Sequence[Trajectory]) -> NotFinite:
        """With all that can be found out, from the parameters that servers sampled with."""
        params = jax.device_put(self._params, self._learner.shardings.params)
        reason = culprits(
            trajectories,
            lambda members: self._gradients(params, members),
            micro_batch_prompts=self._run.learner.micro_batch_prompts,
        )
        return NotFinite(
            f"step {step}: the gradient is not finite (loss {loss:.4g}); {reason}; "
            f"{kept(self._checkpoints.latest())}"
        )


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


def _policy_metrics(
    collector: StepCollector, sums: Mapping[str, float], divisor: int
) -> dict[str, Any]:
    trajectories = collector.trajectories()
    rewards = np.array([t.reward for t in trajectories])
    lengths = np.array([len(t.response_tokens) for t in trajectories])
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "loss": sums["loss"] / divisor,
        "kl": sums["kl"] / sums["tokens"],
        "entropy": sums["entropy"] / sums["tokens"],
        "clip_fraction": sums["clipped"] / sums["tokens"],
        "max_logprob_gap": sums["max_logprob_gap"],
        "response_tokens": int(lengths.sum()),
        "response_length_mean": float(lengths.mean()),
        "response_length_max": int(lengths.max()),
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
