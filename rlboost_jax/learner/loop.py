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

from collections.abc import Sequence

from rlboost_jax import messages
from rlboost_jax.data.prompt_stream import PromptStream
from rlboost_jax.learner.checkpoints.extra import checkpoint_extra
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.evaluation.last_version import measure_last_version
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.evaluation.scoring import Scoring
from rlboost_jax.learner.open_batch import OpenBatch
from rlboost_jax.learner.policy_versions import PolicyVersions
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.step_metrics import FinishedStep
from rlboost_jax.learner.stream.fleet_pulse import FleetPulse
from rlboost_jax.learner.stream.lag import lag_of
from rlboost_jax.learner.stream.step_stream import StreamTimes
from rlboost_jax.learner.stream.stream_driver import drive
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.optimizer_steps import Figures
from rlboost_jax.learner.wait_lines import LearnerWork, WaitLines, shown
from rlboost_jax.observe.span_recorder import LEARNER_LANE, traced
from rlboost_jax.sequences.identities import Batch, Version


class TrainingLoop:
    """The steps of a run, one after the other."""

    def __init__(self, session: Session):
        """Publish the versions that the first batches are sampled from."""
        run = session.run
        self._session, self._run, self._spans = session, run, session.spans
        self.state = session.state
        self._prompts = PromptStream(session.exercises, seed=run.seed)
        self._scoring = Scoring(
            run,
            session.exercises,
            best=session.best,
            note=session.note,
            routing=session.learner.policy.routing,
        )
        self._waited = FleetPulse(lambda: session.link.status, lambda: session.unscored)
        self._lag = lag_of(run)
        self._used = session.prompts_used
        self._window: messages.WindowState | None = None  # after the last step
        self._open: dict[Batch, OpenBatch] = {}
        self._versions = PolicyVersions(session, self._lag)
        first = int(self.state.step) // run.algorithm.updates_per_batch
        self._versions.publish_kept(Batch(first))
        self._versions.publish(Version(first), self.state.params)
        self._lap = session.clock()  # when the last step was over

    @traced("step", LEARNER_LANE)
    def step(self, step: int) -> FinishedStep:
        """Generate and train one step. Its seconds follow on those of the step before.

        Raises:
            StepNotWhole, RewardsFailed, NotFinite, GuardTripped: `state` is of no more use; the
                last checkpoint is.
        """
        number = Batch(step)
        self._versions.load(self.state.params)
        self._begin(self._lag.open_at(number), oldest=number)
        batch = self._open.pop(number)
        update = self._update_of(batch)
        times = self._stream(batch, update)
        trajectories, figures = self._apply(batch, update, times)
        publish_seconds = self._versions.publish(Version(step + 1), self.state.params)
        score = self._scoring.score(batch.measurement) if batch.measurement else None
        report = batch.trained(wait_seconds=times.waiting, seconds=times.busy)
        self._window = report.window
        # [1:]: the next step's batch is open or, without a lag, begins once its version is loaded.
        self._begin(self._lag.open_at(Batch(step + 1))[1:], oldest=Batch(step + 1))
        before, self._lap = self._lap, self._session.clock()
        return FinishedStep(
            step=step,
            version=batch.version,
            trajectories=trajectories,
            trained=update.trajectories(),
            figures=figures,
            score=score,
            report=report,
            prompts_used=self._used,
            params_digest=self._versions.digest,
            durable_step=self._session.checkpoints.durable or 0,
            copied_step=self._session.copies.copied,
            train_seconds=times.busy,
            train_wait_seconds=times.waiting,
            publish_seconds=publish_seconds,
            step_seconds=self._lap - before,
        )

    def save(self, step: int) -> None:
        """Begin the checkpoint to go on with `step` from, where one is due.

        Once it is durable, no row of an earlier step is written any more. Waits until saves of
        `checkpoint.max_behind` or more steps ago are durable.
        """
        session = self._session
        session.checkpoints.wait(step - self._run.checkpoint.max_behind)
        last = step in (self._run.num_steps, session.until)
        if last or step % self._run.checkpoint.every_steps == 0:
            older = self._versions.older_digests(Batch(step))
            extra = checkpoint_extra(self._window, self._used, session.base, versions=older)
            session.followers.save(step, extra)
            trees = self._versions.older_trees(Batch(step))
            session.checkpoints.save(step, self.state, extra, trees)

    @traced("evaluate", LEARNER_LANE)
    def final_score(self) -> tuple[Score, messages.BatchReport] | None:
        """Return the score after the last update with the manager's report; None if unmeasured."""
        measurement = self._scoring.of_last_version()
        if measurement is None:
            return None
        self._versions.load(self.state.params)
        report = measure_last_version(
            self._session,
            measurement,
            params=self.state.params,
            params_digest=self._versions.digest,
            waited=self._waited,
        )
        return self._scoring.score(measurement), report

    def _begin(self, due: Sequence[Batch], *, oldest: Batch) -> None:
        """Begin the batches that are due and not open yet, while `oldest` is trained on."""
        for batch in due:
            if batch in self._open:
                continue
            version = self._lag.version_of(batch)
            self._open[batch] = OpenBatch(
                self._session,
                self._prompts,
                batch,
                version=version,
                params_digest=self._versions.digest_of(version),
                cursor=self._lag.cursor(batch, oldest=oldest, used=self._used),
                measurement=self._scoring.of_step(batch),
            )

    def _update_of(self, batch: OpenBatch) -> BatchUpdate:
        """Begin the update that a batch makes, on all processes."""
        session = self._session
        session.followers.begin(batch.batch, batch.version)
        return BatchUpdate(
            session.learner,
            self.state,
            step=batch.batch,
            checkpoint=session.checkpoints.latest,
            version=batch.version,
            sampler=self._versions.sampler(batch.version),
        )

    def _stream(self, batch: OpenBatch, update: BatchUpdate) -> StreamTimes:
        """Receive a batch and train on it, while later open batches receive theirs too."""
        session, followers, timed = self._session, self._session.followers, self._spans.timed
        work, number = LearnerWork(), update.micro_batches.num_micro_batches
        train = followers.leading(update.train)
        train = work.named(lambda index, _: f"micro-batch {index + 1} of {number}", train)
        check = work.named(lambda _: "a check of tokens", followers.checking(update.check))
        check_heldout = followers.checking_heldout(update.check_heldout)
        check_heldout = work.named(lambda _: "a check of held-out tokens", check_heldout)
        lines = WaitLines(
            f"step {batch.batch}",
            batch.collector,
            work=work,
            unpublished=lambda: session.publisher.unwritten,
        )
        with self._spans.span("stream", LEARNER_LANE), shown(lines, session.note):
            times = drive(
                batch.intake,
                session.link,
                train=timed("micro-batch", LEARNER_LANE, train),
                check=timed("check", LEARNER_LANE, check),
                check_heldout=timed("check held-out", LEARNER_LANE, check_heldout),
                extend=batch.extend,
                ahead=[each.intake for each in self._open.values()],
                waited=self._waited,
                clock=session.clock,
            )
        for line in batch.collector.fault_lines():
            session.note(line)
        return times

    def _apply(
        self, batch: OpenBatch, update: BatchUpdate, times: StreamTimes
    ) -> tuple[tuple[Trajectory, ...], Figures]:
        """Make the updates of a whole batch; return its trajectories and figures."""
        session, stream = self._session, batch.stream
        trajectories, since = stream.trajectories(), session.clock()
        session.followers.finish()
        with self._spans.span("update", LEARNER_LANE):
            self.state, figures = update.finish(
                trajectories, prompts=stream.members, host_params=self._versions.whole
            )
        self._used += self._lag.used(stream.prompts_used)
        times.updating = session.clock() - since
        return trajectories, figures
