"""Set-up of a run: choices before the first device is touched, and the session of a trainer.

The order counts: the folder is taken before anything is written, the fleet starts while the learner
warms up and compiles, and everything is taken down in the opposite order.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.data.open import keep_record, record_lines
from rlboost_jax.environments.environment_journal import FOLDER as FOLDER_OF_EPISODES
from rlboost_jax.environments.environment_journal import forget
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.environments.run_exercises import exercises_of
from rlboost_jax.learner.checkpoints.base import Base, check_same
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.checkpoints.extra import window_of
from rlboost_jax.learner.checkpoints.forking import bring, check_fork
from rlboost_jax.learner.checkpoints.origin import keep_origin
from rlboost_jax.learner.checkpoints.run_copies import NoCopies, RunCopies
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.fleet.engine_weights import load_of, puller_of
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.teacher_snapshots import opened_scores
from rlboost_jax.learner.kept_versions import restored_versions
from rlboost_jax.learner.processes.leader import Followers, invite
from rlboost_jax.learner.processes.process_group import ProcessGroup, settled
from rlboost_jax.learner.publisher import published_base
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.setup.fleet_setup import FleetSetup
from rlboost_jax.learner.setup.makers import Makers, Programs, SessionPlan, lost_layout
from rlboost_jax.learner.setup.preparation import Prepared, lies_elsewhere, prepared, restore
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.manager.service.page.page_certificate import page_line
from rlboost_jax.messages import MAX_LINE, TrainerHello
from rlboost_jax.observe import events_file
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.profile import StepProfile
from rlboost_jax.observe.tracker import Trackers
from rlboost_jax.platform import durable
from rlboost_jax.platform.object_store import ObjectStore
from rlboost_jax.platform.stacks import StacksFile, stacks_path
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.changes import LAYOUT, lines, next_change
from rlboost_jax.weights.snapshots import FOLDER, SnapshotStore
from rlboost_jax.weights.stored_versions import StoredVersions


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """A session, and the objects that act on it outside of its steps."""

    session: Session
    workdir: Workdir
    profile: StepProfile
    trackers: Trackers
    rows: FilesTracker  # one of these
    first: int  # the step to go on with


@dataclass(frozen=True, kw_only=True)
class StartPoint:
    """Where a session starts."""

    step: int  # the one to go on with
    begins: int  # the step that the run began with: that of its fork, or 0
    programs: Programs
    restored: tuple[TrainState, dict[str, Any]] | None  # None: it is the first start
    extra: dict[str, Any]  # JSON values of the checkpoint


class SessionSetup:
    """Set-up of one session, part by part; `stack` takes down what was set up."""

    def __init__(
        self, plan: SessionPlan, path: Path, world: ProcessGroup, stack: ExitStack, makers: Makers
    ) -> None:
        """Lock the folder. Raises WorkdirUnusable."""
        self._plan, self._run, self._world = plan, plan.run, world
        self._stack, self._makers = stack, makers
        self._workdir = stack.enter_context(Workdir(path, plan.published, fork=plan.fork))
        self._path = self._workdir.path
        stack.enter_context(StacksFile(stacks_path(self._path)))
        self._console = stack.enter_context(
            makers.console(num_steps=plan.run.num_steps, live=plan.run.observe.live)
        )

    def open(self) -> OpenedSession:
        """Set the session up, step by step. Raises what `run_training` does before the first."""
        self._begin()
        exercises = self._exercises()
        programs = self._makers.programs(self._run, self._plan.mesh)
        followers = self._stack.enter_context(invite(self._world, self._path))
        fleet = self._fleet(followers)
        self._connect(exercises, fleet.link)
        profile = self._profile()
        copies = self._copies()
        checkpoints = self._checkpoints(fleet.link, copies)
        start = self._restored(programs, checkpoints)
        if start.restored and copies.copied != start.step:
            copies.copy(start.step)  # an earlier start did not come to it
        trackers = self._trackers(start.step)
        self._start_fleet(fleet, start)  # while the learner warms up and compiles
        ready = self._prepared(start, checkpoints)
        run, params = self._run, ready.state.params
        kept = restored_versions(checkpoints, start.step, start.extra, params, run)
        store = self._snapshots(followers)
        base = self._base(ready, start, followers, store)
        scores = opened_scores(run, store.folder, fleet.manager.seal_key, fleet.link, self._console)
        lag, num_processes = run.algorithm.lag, self._world.count
        reserved = fleet.engines(
            self._plan,
            profile,
            working_bytes=ready.working_bytes,
            puller=puller_of(lag, num_processes, kept, base),
            first=start.step,
            num_processes=num_processes,
        )
        publisher = fleet.publisher(store, profile, disk_seconds=run.checkpoint.disk_seconds)
        session = Session(
            run=run,
            exercises=exercises,
            learner=learner_of(
                run,
                policy=ready.policy,
                critic=ready.critic,
                reference=ready.reference,
                teachers=ready.teachers,
                stop_ids=exercises.stop_ids,
                stops=exercises.stops,
            ),
            state=ready.state,
            until=next_change(self._workdir.changes, start.step),
            prompts_used=start.extra.get("prompts_used", 0),
            kept=kept,
            base=base,
            scores=scores,
            link=fleet.link,
            load=load_of(lag, num_processes, reserved, publisher, base),
            publisher=publisher,
            checkpoints=checkpoints,
            copies=copies,
            best=BestCheckpoint(self._path, checkpoints) if run.evaluation.keep_best else None,
            followers=followers,
            note=self._console.note,
            spans=profile.spans,
        )
        return OpenedSession(
            session=session,
            workdir=self._workdir,
            profile=profile,
            trackers=trackers,
            rows=self._rows,
            first=start.step,
        )

    def _begin(self) -> None:
        """Write the files a folder needs when a run starts, or resumes."""
        workdir, run, fork = self._workdir, self._run, self._workdir.fork
        for line in self._plan.lines:
            self._console.note(line)
        if workdir.replaced:
            if fork:
                check_fork(fork, run, self._path, workdir.before)
            self._makers.manager(self._path, workdir.replaced).dismiss()
            workdir.begin_anew()
            self._console.note(
                "the run in this folder had made no update: it begins anew, with other settings"
            )
        if fork:
            self._console.note(f"forked from step {fork.step} of {fork.workdir}")
            bring(fork, self._path)
        keep_origin(self._path, run.model.source)

    def _exercises(self) -> Exercises:
        run, console = self._run, self._console
        with console.phase(f"reading the data of task {run.task.name}"):
            exercises = exercises_of(run, note=console.note, folder=self._path)
        self._stack.callback(exercises.close)
        if exercises.record is not None:
            keep_record(self._path, exercises.record)
            for line in record_lines(exercises.record):
                console.note(line)
        return exercises

    def _connect(self, exercises: Exercises, link: ManagerLink) -> None:
        """Connect the environment, if there is one: its questions are answered from here on."""
        if isinstance(exercises, EpisodeExercises):
            episodes, run_id = exercises.service, self._workdir.run_id
            episodes.connect(self._path, run_id, answer=link.answer, fail=link.fail)
            link.parked = episodes.take

    def _fleet(self, followers: Followers) -> FleetSetup:
        """Make the manager's process and the link to it, neither of them started."""
        lag = self._run.algorithm.lag
        fleet = FleetSetup(self._workdir, self._stack, self._makers, self._console, lag=lag)
        followers.fail_to(fleet.link.fail)
        return fleet

    def _profile(self) -> StepProfile:
        profile = StepProfile(self._run.observe, self._path, note=self._console.note)
        return self._stack.enter_context(profile)

    def _copies(self) -> RunCopies | NoCopies:
        """Begin to copy checkpoints where the run says so; copies close after checkpoints."""
        checkpoint = self._run.checkpoint
        if not checkpoint.copy_to:
            return NoCopies()
        store = ObjectStore(checkpoint.copy_to, setting="checkpoint.copy_to")
        note = self._console.note
        return self._stack.enter_context(
            RunCopies(self._path, store, keep=checkpoint.keep, note=note)
        )

    def _checkpoints(self, link: ManagerLink, copies: RunCopies | NoCopies) -> Checkpoints:
        checkpoint = self._run.checkpoint
        return self._stack.enter_context(
            Checkpoints(
                self._path / "checkpoints",
                keep=checkpoint.keep,
                keep_every=checkpoint.keep_every,
                on_durable=lambda step: self._committed(step, link, copies),
                before=lambda: self._rows.sync(),  # of steps that are not done again
                note=self._console.note,
                disk_seconds=checkpoint.disk_seconds,
                held=lambda: copies.held,
            )
        )

    def _restored(self, programs: Programs, checkpoints: Checkpoints) -> StartPoint:
        """Restore the newest checkpoint, with the settings that hold from its step on."""
        run, world, workdir, note = self._run, self._world, self._workdir, self._console.note
        restored = restore(run, *programs, checkpoints, world, note)
        extra = restored[1] if restored else {}
        step = checkpoints.latest() or 0
        self._go_on(step)
        begins = workdir.fork.step if workdir.fork else 0
        changes, _ = settled(workdir.changes, step, begins, world)
        self._plan = self._plan.at(changes, step)
        if run != self._plan.run:
            self._run = self._plan.run
            # Programs made of the run before are stale: from here on only `start.programs` count.
            programs = self._makers.programs(self._run, self._plan.mesh)
            if restored and lies_elsewhere(run, self._run):
                restored = None  # room for what is read
                restored = restore(self._run, *programs, checkpoints, world, note)
        for line in lines(workdir.changes, step=step):
            note(line)
        return StartPoint(
            step=step, begins=begins, programs=programs, restored=restored, extra=extra
        )

    def _go_on(self, first: int) -> None:
        """Settle the settings that hold from a step on, and record them."""
        workdir, newest = self._workdir, self._plan.run
        workdir.go_on(first)
        reason = lost_layout(newest, workdir.changes, first, self._world, self._makers)
        if reason:
            self._console.note(
                f"step {first} is done again as the run is laid out now, so that bits may differ "
                f"by rounding: {reason}"
            )
            workdir.go_on(first, again=LAYOUT)

    def _trackers(self, first: int) -> Trackers:
        """Open the trackers. They are closed after the fleet has left, which may take a minute."""
        chosen = self._makers.trackers(
            self._run, self._path, self._workdir.run_id, step=first, note=self._console.note
        )
        self._rows = FilesTracker(
            self._path, step=first, disk_seconds=self._run.checkpoint.disk_seconds
        )
        self._console.earlier(read_metrics(self._path))
        trackers = Trackers([self._rows, self._console, *chosen])
        self._stack.callback(trackers.close)
        return trackers

    def _committed(self, step: int, link: ManagerLink, copies: RunCopies | NoCopies) -> None:
        """Make the events of a checkpoint's steps durable, then tell the manager, which forgets
        their tokens. Runs in the thread that waits for checkpoints.
        """
        durable.sync(self._path / events_file.FILE)
        durable.sync_folder(self._path)
        if step:
            link.committed(Batch(step - 1))
            forget(self._path / FOLDER_OF_EPISODES, step - 1)
        copies.copy(step)

    def _start_fleet(self, fleet: FleetSetup, start: StartPoint) -> None:
        changes = (
            str(each)[:MAX_LINE] for each in self._workdir.changes if each.step == start.step
        )
        window = window_of(start.extra) if start.restored else None
        run_id = self._workdir.run_id
        fleet.start(TrainerHello(run_id=run_id, window=window, changes=tuple(changes)))
        if self._run.observe.page.serve and (line := page_line(self._path)):
            self._console.note(line)
        if start.restored:
            done, whole = start.step, self._plan.published.num_steps
            self._console.note(f"going on with step {done}: {done} of {whole} are done")

    def _prepared(self, start: StartPoint, checkpoints: Checkpoints) -> Prepared:
        return prepared(
            *(self._run, self._path, *start.programs, checkpoints, start.restored, self._console),
            begins=start.begins,
        )

    def _snapshots(self, followers: Followers) -> SnapshotStore:
        weights = self._run.weights
        store = ObjectStore(weights.store, setting="weights.store") if weights.store else None
        return self._makers.snapshots(
            self._path / FOLDER,
            dtype=weights.rollout_dtype,
            keep=weights.keep_versions,
            deltas=weights.deltas,
            stored=StoredVersions(store, self._console.note) if store else None,
            others=followers.written,
        )

    def _base(
        self, ready: Prepared, start: StartPoint, followers: Followers, store: SnapshotStore
    ) -> Base | None:
        """Publish the base of the adapters; None where all parameters are trained."""
        if ready.policy.base is None:
            return None
        with self._console.phase("copying the base for servers"):
            seconds = self._run.checkpoint.disk_seconds
            base = published_base(ready.policy.base, followers, store, seconds)
        check_same(base.digest, start.extra, self._path)
        return base
