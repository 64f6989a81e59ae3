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

from collections.abc import Sequence
from functools import partial
from typing import Any

from rlboost_jax import messages
from rlboost_jax.data.exercises import Prompt
from rlboost_jax.data.prompts import PromptStream
from rlboost_jax.learner.checkpoint_extra import checkpoint_extra
from rlboost_jax.learner.collector import StepCollector
from rlboost_jax.learner.evaluation import Measurement, Score
from rlboost_jax.learner.rows import policy_metrics, report_metrics, score_metrics
from rlboost_jax.learner.samples import sample_rows, samples_due
from rlboost_jax.learner.scoring import Scoring
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.stream.driver import drive
from rlboost_jax.learner.stream.dynamic_sampling import dynamic_sampling
from rlboost_jax.learner.stream.step_stream import StepStream, StreamTimes
from rlboost_jax.learner.trajectory import trajectories_digest
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.models.adapters import joined
from rlboost_jax.observe.spans import traced
from rlboost_jax.sequences.identities import Batch, Version

LANE = "learner"  # of this thread in a profile


class TrainingLoop:
    """The steps of a run, one after the other."""

    def __init__(self, session: Session):
        """Publishes the parameters that the first step samples from."""
        run, exercises = session.run, session.exercises
        self._session, self._run, self._spans = session, run, session.spans
        self.state = session.state
        self._prompts = PromptStream(exercises, seed=run.seed)
        self._scoring = Scoring(run, exercises, best=session.best, note=session.note)
        self._sampling = messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            stop_ids=tuple(exercises.stop_ids),
        )
        self._used = session.prompts_used
        self._window: messages.WindowState | None = None  # after the last step
        self._publish(Version(int(self.state.step) // run.algorithm.updates_per_batch))
        self._lap = session.clock()  # when the last step was over

    @traced("step", LANE)
    def step(self, step: int) -> dict[str, Any]:
        """Generate and train one step; returns its row of metrics.

        Its seconds follow on those of the step before.

        Raises:
            StepNotWhole, RewardsFailed, NotFinite, GuardTripped: `state` is of no more use; the
                last checkpoint is.
        """
        session, run = self._session, self._run
        measurement = self._scoring.of_step(step)
        update = BatchUpdate(
            session.learner, self.state, step=step, checkpoint=session.checkpoints.latest
        )
        stream = StepStream(
            step,
            group_size=run.algorithm.group_size,
            micro_batches=update.micro_batches,
            sampling=dynamic_sampling(run),
            awaited=measurement,
        )
        times = self._stream(stream, update, measurement)
        trajectories = stream.trajectories()
        applying = session.clock()
        session.followers.finish()
        with self._spans.span("update", LANE):
            self.state, figures = update.finish(
                trajectories,
                prompts=stream.members,
                host_params=None if session.followers else self._params,
            )
        self._used += stream.prompts_used
        train_seconds = times.training + session.clock() - applying
        if samples_due(run.observe, step):
            session.show(
                sample_rows(
                    step,
                    update.trajectories(),  # with the advantages that they were trained with
                    task=session.exercises,
                    num_prompts=run.observe.samples_prompts,
                )
            )
        publish_seconds = self._publish(Version(step + 1))
        score = self._scoring.score(measurement, step) if measurement else None

        report = session.link.trained(
            messages.BatchTrained(
                batch=Batch(step), train_wait_seconds=times.waiting, train_seconds=train_seconds
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
        before, self._lap = self._lap, session.clock()
        return {**row, "step_seconds": self._lap - before}

    def save(self, step: int) -> None:
        """Begin the checkpoint to go on with `step` from, where one is due.

        Once it is durable no row of an earlier step is written any more.
        """
        if step % self._run.checkpoint.every_steps == 0 or step == self._run.num_steps:
            extra = checkpoint_extra(self._window, self._used, self._session.base)
            self._session.followers.save(step, extra)
            self._session.checkpoints.save(step, self.state, extra)

    @traced("evaluate", LANE)
    def final_score(self) -> Score | None:
        """Of the parameters after the last update; None where nothing is evaluated."""
        measurement, link = self._scoring.of_last_version(), self._session.link
        if measurement is None:
            return None
        version = self._run.num_steps
        (prompts, group_size), *_ = measurement.parts()
        self._load(Version(version))
        self._begin(version, prompts, group_size, measurement.sampling)
        for extension in measurement.extensions()[1:]:  # what groups leave over of each prompt
            link.extend_batch(extension)
        while not measurement.complete:
            if isinstance(message := link.receive(), messages.FinishedRollout):
                measurement.take(message)
        link.trained(
            messages.BatchTrained(batch=Batch(version), train_wait_seconds=0.0, train_seconds=0.0)
        )
        return self._scoring.score(measurement, version)

    def _stream(
        self, stream: StepStream, update: BatchUpdate, measurement: Measurement | None
    ) -> StreamTimes:
        """Begin a step, and take its batch in."""
        session, link, followers = self._session, self._session.link, self._session.followers
        step, group_size = stream.step, self._run.algorithm.group_size
        prompts = self._prompts_at(stream.begin())
        self._load(Version(step))
        self._begin(step, _requests(prompts, 0), group_size, self._sampling)
        for extension in measurement.extensions() if measurement else ():
            link.extend_batch(extension)

        collector = StepCollector(
            step,
            version=step,
            prompts=[prompt.tokens for prompt in prompts],
            group_size=group_size,
            ask=lambda prompt, tokens: session.exercises.ask(prompts[prompt], tokens),
            wake=link.wake,
            estimate=session.learner.estimates.of_group,
            routing=session.learner.policy.routing,
        )

        def extend(places: range) -> None:
            more = self._prompts_at(places)
            prompts.extend(more)
            collector.extend(prompt.tokens for prompt in more)
            requests = _requests(more, places.start)
            link.extend_batch(messages.ExtendBatch(batch=Batch(step), prompts=requests))

        followers.begin(step)
        train = followers.leading(update.train)
        check = followers.checking(partial(session.learner.check, self.state))
        with self._spans.span("stream", LANE):
            times = drive(
                stream,
                link,
                collector,
                train=self._spans.timed("micro-batch", LANE, train),
                check=self._spans.timed("check", LANE, check),
                extend=extend,
                measured=measurement,
                clock=session.clock,
            )
        for line in collector.fault_lines():
            session.note(line)
        return times

    @traced("copy parameters", LANE)
    def _publish(self, version: Version) -> float:
        """Copy the parameters to the host, where engines and snapshots are made of them.

        Returns:
            seconds that the copy took; the digest and the disk are beside the point.
        """
        session = self._session
        since = session.clock()
        self._params = session.followers.host_copy(self.state.params)
        seconds = session.clock() - since
        needed = version < self._run.num_steps or self._scoring.on
        if needed:
            session.followers.write(str(version))
        self._digest = session.followers.digest(
            self.state.params,
            self._params,
            str(version),
            base=session.base.digest if session.base else "",
        )
        if needed:
            session.publisher.submit(version, self._params, self._digest)
        return seconds

    def _load(self, version: Version) -> None:
        """Give the reserved engines the parameters that were published last."""
        base = self._session.base
        # From device to device, unless other processes hold parts of it.
        if self._session.followers:
            params = self._session.publisher.open(version)
        else:
            params = joined(base.params if base else None, self.state.params)
        self._session.reserved.load(params, version, self._digest)

    def _begin(
        self,
        step: int,
        prompts: tuple[messages.PromptRequest, ...],
        group_size: int,
        sampling: messages.Sampling,
    ) -> None:
        self._session.link.begin_batch(
            messages.BeginBatch(
                batch=Batch(step),
                version=Version(step),
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
