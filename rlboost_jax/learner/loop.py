"""The training loop: begin due batches, train on what streams in, update, publish, repeat.

A version is published at the end of the step that made it, so that servers fetch it while
the row is written and the checkpoint begun. Only then does the next step begin, with the
reserved engine ready for its seeding window. Now and then held-out prompts are generated with
it, by the whole fleet. With `algorithm.lag` the next batches have begun before, from older
versions (`stream/lag.py`), and go on being generated while this one is trained on.

Invariants:
- the parameters of step s have been updated by s batches, and every token of step s was
  sampled from one version that is known beforehand: just these or, with a lag, those of before;
- the updates of a step are made of all its prompts × group samples, or not at all;
- batches are trained on in their order, and one batch's updates make one version;
- a checkpoint holds what the next step needs; what happened after it can be done again and,
  in deterministic mode, gives the same bits.
"""

from functools import partial

from rlboost_jax import messages
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.learner.checkpoints.extra import checkpoint_extra
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.evaluation.scoring import Scoring
from rlboost_jax.learner.kept_versions import held_here
from rlboost_jax.learner.open_batch import OpenBatch
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.step_metrics import FinishedStep
from rlboost_jax.learner.stream.batch_intake import MeasuredIntake
from rlboost_jax.learner.stream.fleet_pulse import FleetPulse
from rlboost_jax.learner.stream.lag import lag_of
from rlboost_jax.learner.stream.step_stream import StreamTimes
from rlboost_jax.learner.stream.stream_driver import drive, drive_measurement
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.wait_lines import LearnerWork, WaitLines, shown
from rlboost_jax.models.adapters import joined
from rlboost_jax.models.params import Params
from rlboost_jax.observe.span_recorder import traced
from rlboost_jax.sequences.identities import Batch, Version

LANE = "learner"  # of this thread in a profile


class TrainingLoop:
    """The steps of a run, one after the other."""

    def __init__(self, session: Session):
        """Publish the versions that the first batches are sampled from."""
        run, exercises = session.run, session.exercises
        self._session, self._run, self._spans = session, run, session.spans
        self.state = session.state
        self._prompts = PromptStream(exercises, seed=run.seed)
        self._scoring = Scoring(
            run,
            exercises,
            best=session.best,
            note=session.note,
            judge=session.judge,
            routing=session.learner.policy.routing,
        )
        self._sampling = messages.Sampling(
            temperature=run.sampling.temperature,
            top_p=run.sampling.top_p,
            top_k=run.sampling.top_k,
            max_tokens=run.sampling.max_response_tokens,
            turn_tokens=run.environment.turn_tokens,
            stop_ids=tuple(exercises.stop_ids),
            stops=exercises.stops,
        )
        self._waited = FleetPulse(lambda: session.link.status, lambda: session.unscored)
        self._lag = lag_of(run)
        self._used = session.prompts_used
        self._window: messages.WindowState | None = None  # after the last step
        self._open: dict[Batch, OpenBatch] = {}
        self._versions = session.versions
        self._shardings = session.learner.policy.shardings.params
        self._version, self._digest = Version(-1), ""  # of the state; the first is published below
        first = int(self.state.step) // run.algorithm.updates_per_batch
        for version in filter(self._lag.samples, self._lag.kept_at(Batch(first))):
            self._publish_kept(version, oldest_batch=Batch(first))
        self._publish(Version(first))
        self._lap = session.clock()  # when the last step was over

    @traced("step", LANE)
    def step(self, step: int) -> FinishedStep:
        """Generate and train one step.

        Its seconds follow on those of the step before.

        Raises:
            StepNotWhole, RewardsFailed, NotFinite, GuardTripped: `state` is of no more use; the
                last checkpoint is.
        """
        session = self._session
        self._begin(Batch(step))
        batch = self._open.pop(Batch(step))
        stream, measurement = batch.stream, batch.measurement
        update = BatchUpdate(
            session.learner,
            self.state,
            step=step,
            checkpoint=session.checkpoints.latest,
            version=batch.version,
            sampler=self._versions.sampler(batch.version, self._version, self._shardings),
        )
        times = self._stream(batch, update)
        trajectories = stream.trajectories()
        applying = session.clock()
        session.followers.finish()
        with self._spans.span("update", LANE):
            self.state, figures = update.finish(
                trajectories,
                prompts=stream.members,
                host_params=None if session.followers else self._params,
            )
        self._used += self._lag.stride or stream.prompts_used
        train_seconds = times.training + session.clock() - applying
        publish_seconds = self._publish(Version(step + 1))
        score = self._scoring.score(measurement) if measurement else None
        report = session.link.trained(
            messages.BatchTrained(
                batch=Batch(step), train_wait_seconds=times.waiting, train_seconds=train_seconds
            )
        )
        self._window = report.window
        if session.episodes is not None:
            session.episodes.over(Batch(step))
        if self._lag.versions:
            self._begin(Batch(step + 1))
        before, self._lap = self._lap, session.clock()
        return FinishedStep(
            step=step,
            version=batch.version,
            trajectories=trajectories,
            trained=update.trajectories(),
            figures=figures,
            score=score,
            report=report,
            prompts_used=self._used,
            params_digest=self._digest,
            durable_step=session.checkpoints.durable or 0,
            train_seconds=train_seconds,
            train_wait_seconds=times.waiting,
            publish_seconds=publish_seconds,
            step_seconds=self._lap - before,
        )

    def save(self, step: int) -> None:
        """Begin the checkpoint to go on with `step` from, where one is due.

        Once it is durable no row of an earlier step is written any more. Waits until nothing is
        saved that has taken `checkpoint.max_behind` steps.
        """
        self._session.checkpoints.wait(step - self._run.checkpoint.max_behind)
        last = step in (self._run.num_steps, self._session.until)
        if last or step % self._run.checkpoint.every_steps == 0:
            older = self._lag.kept_at(Batch(step))
            extra = checkpoint_extra(
                self._window,
                self._used,
                self._session.base,
                versions=self._versions.digests(older),
            )
            self._session.followers.save(step, extra)
            versions = self._versions.trees(older, self._shardings)
            self._session.checkpoints.save(step, self.state, extra, versions)

    @traced("evaluate", LANE)
    def final_score(self) -> tuple[Score, messages.BatchReport] | None:
        """Return the score after the last update with the manager's report; None if unmeasured."""
        session, link = self._session, self._session.link
        measurement = self._scoring.of_last_version()
        if measurement is None:
            return None
        version = self._run.num_steps
        (prompts, group_size), *_ = measurement.parts()
        self._load()
        if session.episodes is not None:
            session.episodes.begin(Batch(version), lambda work: measurement.prompt_of(work.prompt))
        link.begin_batch(
            messages.BeginBatch(
                batch=Batch(version),
                version=Version(version),
                params_digest=self._digest,
                seed=self._run.seed,
                group_size=group_size,
                sampling=measurement.sampling,
                prompts=prompts,
                turns=session.turns,
            )
        )
        for extension in measurement.extensions()[1:]:  # what groups leave over of each prompt
            link.extend_batch(extension)
        learner, params = session.learner, self.state.params
        drive_measurement(
            MeasuredIntake(measurement),
            link,
            number=Batch(version),
            check=session.followers.checking_heldout(partial(learner.check, params, heldout=True)),
            waited=self._waited,
        )
        report = link.trained(
            messages.BatchTrained(batch=Batch(version), train_wait_seconds=0.0, train_seconds=0.0)
        )
        return self._scoring.score(measurement), report

    def _begin(self, oldest: Batch) -> None:
        """Begin all batches that are due while `oldest` is trained on."""
        self._load()
        for batch in self._lag.open_at(oldest):
            if batch in self._open:
                continue
            version = self._lag.version_of(batch)
            self._open[batch] = OpenBatch(
                self._session,
                self._prompts,
                batch,
                version=version,
                params_digest=self._digest_of(version),
                cursor=self._used + (batch - oldest) * (self._lag.stride or 0),
                sampling=self._sampling,
                measurement=self._scoring.of_step(batch),
            )

    def _stream(self, batch: OpenBatch, update: BatchUpdate) -> StreamTimes:
        """Receive a batch and train on it, while later open batches receive theirs too."""
        session, followers = self._session, self._session.followers
        followers.begin(batch.batch, batch.version)
        train = followers.leading(update.train)
        check = followers.checking(update.check)
        check_heldout = followers.checking_heldout(update.check_heldout)
        work, number = LearnerWork(), update.micro_batches.num_micro_batches
        train = work.named(lambda index, _: f"micro-batch {index + 1} of {number}", train)
        check = work.named(lambda _: "a check of tokens", check)
        check_heldout = work.named(lambda _: "a check of held-out tokens", check_heldout)
        lines = WaitLines(
            f"step {batch.batch}",
            batch.collector,
            work=work,
            unpublished=lambda: session.publisher.unwritten,
        )
        with self._spans.span("stream", LANE), shown(lines, session.note):
            times = drive(
                batch.intake,
                session.link,
                train=self._spans.timed("micro-batch", LANE, train),
                check=self._spans.timed("check", LANE, check),
                check_heldout=self._spans.timed("check held-out", LANE, check_heldout),
                extend=batch.extend,
                ahead=[each.intake for each in self._open.values()],
                waited=self._waited,
                clock=session.clock,
            )
        for line in batch.collector.fault_lines():
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
        final = version == self._run.num_steps and self._scoring.on
        needed = self._lag.samples(version) or final
        if needed:
            session.followers.write(str(version))
        self._digest = session.followers.digest(
            self.state.params,
            self._params,
            str(version),
            base=session.base.digest if session.base else "",
        )
        self._version = version
        if self._lag.versions:
            older, dtype = self._lag.kept_at(Batch(version)), self._run.weights.rollout_dtype
            session.followers.keep(version, self._digest, older)
            self._versions.forget(older)
            here = held_here(self.state.params) if session.followers else self._params
            self._versions.keep(version, here, self._digest, dtype=dtype)
        if needed:
            self._submit(version, self._params, oldest_batch=Batch(version))
        return seconds

    def _publish_kept(self, version: Version, *, oldest_batch: Batch) -> None:
        """Publish an older version again: a resumed run may find no snapshot of it."""
        followers, host_params = self._session.followers, self._versions.params(version)
        if followers:
            followers.write(str(version))
            host_params = followers.host_copy(self._versions.on_devices(version, self._shardings))
        self._submit(version, host_params, oldest_batch=oldest_batch)

    def _submit(self, version: Version, host_params: Params, *, oldest_batch: Batch) -> None:
        self._session.publisher.submit(
            version,
            host_params,
            self._digest_of(version),
            oldest=self._lag.version_of(oldest_batch),
        )

    def _digest_of(self, version: Version) -> str:
        if version == self._version:
            return self._digest
        return self._versions.digest(version)

    def _load(self) -> None:
        """Load the newest version into the reserved engines. With a lag they take what the manager
        announces to each, from `Session.versions`.
        """
        if self._lag.versions:
            return
        base = self._session.base
        # From device to device, unless other processes hold parts of it.
        if self._session.followers:
            params = self._session.publisher.open(self._version)
        else:
            params = joined(base.params if base else None, self.state.params)
        self._session.reserved.load(params, self._version, self._digest)
