"""The training loop: begin a step, train what streams in, update, publish, again.

A version is published at the end of the step that made it, so that servers fetch it while
the row is written and the checkpoint begun. Only then does the next step begin, with the
reserved engine ready for its seeding window. Now and then held-out prompts are generated with
it, by the whole fleet.

Invariants:
- the parameters of step s have been updated by s batches, and every token of step s was
  sampled from just these;
- the updates of a step are made of all its prompts × group samples, or not at all;
- a checkpoint holds what the next step needs; what happened after it can be done again and,
  in deterministic mode, gives the same bits.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rlboost_jax import messages
from rlboost_jax.data.exercises import Exercises, Prompt
from rlboost_jax.data.prompts import PromptStream
from rlboost_jax.learner.base import Base
from rlboost_jax.learner.best import BestCheckpoint
from rlboost_jax.learner.checkpoint_extra import checkpoint_extra
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.critic import CriticStep
from rlboost_jax.learner.driver import drive
from rlboost_jax.learner.dynamic_sampling import dynamic_sampling
from rlboost_jax.learner.evaluation import Score
from rlboost_jax.learner.followers import Followers
from rlboost_jax.learner.learners import learners_of
from rlboost_jax.learner.link import ManagerLink
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngines
from rlboost_jax.learner.rows import policy_metrics, report_metrics, score_metrics
from rlboost_jax.learner.samples import sample_rows, samples_due
from rlboost_jax.learner.scoring import Scoring
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.stream import StepStream
from rlboost_jax.learner.trajectory import trajectories_digest
from rlboost_jax.learner.updates import BatchUpdates
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.params import Params, params_digest
from rlboost_jax.observe.samples import SampleRow
from rlboost_jax.observe.spans import Recorder, traced
from rlboost_jax.settings.run import RunConfig

LANE = "learner"  # of this thread in a profile


class TrainingLoop:
    """The steps of a run, one after the other."""

    def __init__(
        self,
        run: RunConfig,
        *,
        exercises: Exercises,
        learner: LearnerStep,
        state: TrainState,
        reference: Params | None,
        base: Base | None = None,
        link: ManagerLink,
        reserved: ReservedEngines,
        publisher: Publisher,
        checkpoints: Checkpoints,
        best: BestCheckpoint | None = None,
        prompts_used: int = 0,
        critic: CriticStep | None = None,
        followers: Followers | None = None,
        note: Callable[[str], None] = lambda line: None,
        show: Callable[[Sequence[SampleRow]], None] = lambda rows: None,
        spans: Recorder | None = None,
    ):
        """Args:
        base: of the adapters, where these are what is trained.
        best: is offered every checkpoint that is evaluated.
        prompts_used: of the prompt stream, by the steps before.
        note: shows a line to whoever watches.
        show: is given the samples of every step that has any to show.
        spans: of this process.
        """
        self._spans = spans or Recorder()
        self._run, self._exercises, self._note = run, exercises, note
        self.state, self._base = state, base
        self._learners = learners_of(
            run, policy=learner, critic=critic, reference=reference, stop_ids=exercises.stop_ids
        )
        self._followers = followers or Followers()
        self._link, self._reserved = link, reserved
        self._publisher, self._checkpoints, self._show = publisher, checkpoints, show
        self._prompts = PromptStream(exercises, seed=run.seed)
        self._scoring = Scoring(run, exercises, best=best, note=note)
        self._sampling = messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(exercises.stop_ids),
        )
        self._used = prompts_used
        self._window: messages.WindowState | None = None  # after the last step
        self._publish(int(state.step) // run.algorithm.updates_per_batch)
        self._lap = time.perf_counter()  # when the last step was over

    @traced("step", LANE)
    def step(self, step: int) -> dict[str, Any]:
        """Generate and train one step; returns its row of metrics.

        Its seconds follow on those of the step before.

        Raises:
            StepNotWhole, RewardsFailed, NotFinite, GuardTripped: `state` is of no more use; the
                last checkpoint is.
        """
        measurement = self._scoring.of_step(step)
        updates = BatchUpdates(
            self._learners, self.state, step=step, checkpoint=self._checkpoints.latest
        )
        stream = StepStream(
            step,
            group_size=self._run.algorithm.group_size,
            micro_batches=updates.micro_batches,
            sampling=dynamic_sampling(self._run),
            awaited=measurement,
        )
        prompts = self._prompts_at(stream.begin())
        self._load(step)
        self._begin(step, _requests(prompts, 0), self._run.algorithm.group_size, self._sampling)
        for extension in measurement.extensions() if measurement else ():
            self._link.extend_step(extension)

        collector = StepCollector(
            step,
            version=step,
            prompts=[prompt.tokens for prompt in prompts],
            group_size=self._run.algorithm.group_size,
            ask=lambda prompt, tokens: self._exercises.ask(prompts[prompt], tokens),
            wake=self._link.wake,
            estimate=self._learners.estimates.of_group,
            routing=self._learners.policy.routing,
        )

        def extend(places: range) -> None:
            more = self._prompts_at(places)
            prompts.extend(more)
            collector.extend(prompt.tokens for prompt in more)
            self._link.extend_step(
                messages.ExtendStep(step=step, prompts=_requests(more, places.start))
            )

        self._followers.begin(step)
        train = self._followers.leading(updates.train)
        check = self._followers.checking(partial(self._learners.check, self.state))
        with self._spans.span("stream", LANE):
            times = drive(
                stream,
                self._link,
                collector,
                train=self._spans.timed("micro-batch", LANE, train),
                check=self._spans.timed("check", LANE, check),
                extend=extend,
                measured=measurement,
            )
        trajectories = stream.trajectories()
        for line in collector.fault_lines():
            self._note(line)
        applying = time.perf_counter()
        self._followers.finish()
        with self._spans.span("update", LANE):
            self.state, figures = updates.finish(
                trajectories,
                prompts=stream.members,
                host_params=None if self._followers else self._params,
            )
        self._used += stream.prompts_used
        train_seconds = times.training + time.perf_counter() - applying
        if samples_due(self._run.observe, step):
            self._show(
                sample_rows(
                    step,
                    updates.trajectories(),  # with the advantages that they were trained with
                    task=self._exercises,
                    num_prompts=self._run.observe.samples_prompts,
                )
            )
        publish_seconds = self._publish(step + 1)
        score = self._scoring.score(measurement, step) if measurement else None

        report = self._link.trained(
            messages.StepTrained(
                step=step, train_wait_seconds=times.waiting, train_seconds=train_seconds
            )
        )
        self._window = report.window
        row = {
            "step": step,
            "version": step,
            **score_metrics(score),
            "prompts_used": self._used,
            **policy_metrics(trajectories, figures),
            "train_seconds": train_seconds,
            "train_wait_seconds": times.waiting,
            "publish_seconds": publish_seconds,
            **report_metrics(report, trajectories),
            "trajectories_digest": trajectories_digest(trajectories),
            "params_digest": self._digest,
        }
        before, self._lap = self._lap, time.perf_counter()
        return {**row, "step_seconds": self._lap - before}

    def save(self, step: int) -> None:
        """Begin the checkpoint to go on with `step` from, where one is due.

        Once it is durable no row of an earlier step is written any more.
        """
        if step % self._run.checkpoint.every_steps == 0 or step == self._run.num_steps:
            extra = checkpoint_extra(self._window, self._used, self._base)
            self._followers.save(step, extra)
            self._checkpoints.save(step, self.state, extra)

    @traced("evaluate", LANE)
    def final_score(self) -> Score | None:
        """Of the parameters after the last update; None where nothing is evaluated."""
        measurement = self._scoring.of_last_version()
        if measurement is None:
            return None
        version = self._run.num_steps
        (prompts, group_size), *_ = measurement.parts()
        self._load(version)
        self._begin(version, prompts, group_size, measurement.sampling)
        for extension in measurement.extensions()[1:]:  # what groups leave over of each prompt
            self._link.extend_step(extension)
        while not measurement.complete:
            if isinstance(message := self._link.receive(), messages.FinishedRollout):
                measurement.take(message)
        self._link.trained(
            messages.StepTrained(step=version, train_wait_seconds=0.0, train_seconds=0.0)
        )
        return self._scoring.score(measurement, version)

    @traced("copy parameters", LANE)
    def _publish(self, version: int) -> float:
        """Copy the parameters to the host, where engines and snapshots are made of them.

        Returns:
            seconds that the copy took; the digest and the disk are beside the point.
        """
        since = time.perf_counter()
        self._params = self._followers.gather(self.state.params)
        seconds = time.perf_counter() - since
        self._digest = params_digest(self._params, base=self._base.digest if self._base else "")
        if version < self._run.num_steps or self._scoring.on:  # else no one needs it
            self._publisher.submit(version, self._params, self._digest)
        return seconds

    def _load(self, version: int) -> None:
        """Give the reserved engines the parameters that were published last."""
        # From device to device, unless other processes hold parts of it.
        trained = self._params if self._followers else self.state.params
        params = joined(self._base.params if self._base else None, trained)
        self._reserved.load(params, version, self._digest)

    def _begin(
        self,
        step: int,
        prompts: tuple[messages.PromptRequest, ...],
        group_size: int,
        sampling: messages.Sampling,
    ) -> None:
        self._link.begin_step(
            messages.BeginStep(
                step=step,
                version=step,
                params_digest=self._digest,
                seed=self._run.seed,
                group_size=group_size,
                sampling=sampling,
                prompts=prompts,
            )
        )

    def _prompts_at(self, places: range) -> list[Prompt]:
        """Of the prompt stream, counted from the step's cursor."""
        return list(self._prompts.slice(self._used + places.start, len(places)))


def _requests(prompts: Sequence[Prompt], first: int) -> tuple[messages.PromptRequest, ...]:
    return tuple(
        messages.PromptRequest(prompt=place, tokens=messages.pack_tokens(prompt.tokens))
        for place, prompt in enumerate(prompts, start=first)
    )
