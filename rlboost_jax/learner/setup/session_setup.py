"""Set-up of a run: choices before the first device is touched, and the session of a trainer.

The order counts: the folder is taken before anything is written, the fleet starts while the learner
warms up and compiles, and everything is taken down in the opposite order.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rlboost_jax.data.exercises import Exercises
from rlboost_jax.data.open import keep_record, record_lines
from rlboost_jax.environments.environment_journal import FOLDER as FOLDER_OF_EPISODES
from rlboost_jax.environments.environment_journal import forget
from rlboost_jax.environments.episode_exercises import EpisodeExercises
from rlboost_jax.environments.run_exercises import exercises_of
from rlboost_jax.learner.checkpoints.base import check_same
from rlboost_jax.learner.checkpoints.best import BestCheckpoint
from rlboost_jax.learner.checkpoints.extra import window_of
from rlboost_jax.learner.checkpoints.forking import bring, check_fork
from rlboost_jax.learner.checkpoints.origin import keep_origin
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.episodes.run_environments import Environments
from rlboost_jax.learner.fleet.engine_weights import load_of, puller_of
from rlboost_jax.learner.fleet.life import sending_home, showing_fleet
from rlboost_jax.learner.fleet.link import ManagerLink
from rlboost_jax.learner.fleet.manager_process import ManagerProcess
from rlboost_jax.learner.fleet.reserved import ReservedEngines, devices_of_slices
from rlboost_jax.learner.fleet.teacher_snapshots import opened_scores
from rlboost_jax.learner.kept_versions import restored_versions
from rlboost_jax.learner.processes.leader import invite
from rlboost_jax.learner.processes.process_group import ProcessGroup, settled
from rlboost_jax.learner.publisher import Publisher, published_base
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.setup.hosts import host_lines
from rlboost_jax.learner.setup.makers import Makers, SessionPlan, lost_layout
from rlboost_jax.learner.setup.preparation import Prepared, lies_elsewhere, prepared, restore
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.learner.workdir import Workdir
from rlboost_jax.manager.service.page.page_certificate import page_line
from rlboost_jax.messages import MAX_LINE, TrainerHello
from rlboost_jax.observe import events_file
from rlboost_jax.observe.files_tracker import FilesTracker
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.profile import StepProfile
from rlboost_jax.observe.tracker import Trackers
from rlboost_jax.platform import compile_cache, durable
from rlboost_jax.platform.event_loop import EventLoopThread
from rlboost_jax.platform.stacks import StacksFile, stacks_path
from rlboost_jax.rollout.weight_updates import PullerLike
from rlboost_jax.sequences.identities import Batch
from rlboost_jax.settings.changes import LAYOUT, lines, next_change
from rlboost_jax.settings.memory_estimates import learner_bytes_per_device
from rlboost_jax.trust.credentials import CredentialsUnusable
from rlboost_jax.trust.seal import sealed
from rlboost_jax.weights.compiled import FOLDER as COMPILED
from rlboost_jax.weights.compiled import offer
from rlboost_jax.weights.snapshots import FOLDER, SnapshotStore


@dataclass(frozen=True, kw_only=True)
class OpenedSession:
    """A session, and the objects that act on it outside of its steps."""

    session: Session
    workdir: Workdir
    profile: StepProfile
    trackers: Trackers
    rows: FilesTracker  # one of these
    first: int  # the step to go on with


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
        """Set the session up. Raises what `run_training` does before the first step."""
        run, console, stack, workdir = self._run, self._console, self._stack, self._workdir
        for line in self._plan.lines:
            console.note(line)
        self._begin()
        keep_origin(self._path, run.model.source)
        exercises = self._exercises()
        policy, critic = self._makers.programs(run, self._plan.mesh)
        followers = stack.enter_context(invite(self._world, self._path))
        manager, link = self._manager()
        episodes = self._episodes(exercises, link)
        followers.fail_to(link.fail)
        profile = stack.enter_context(StepProfile(run.observe, self._path, note=console.note))
        checkpoints = stack.enter_context(
            Checkpoints(
                self._path / "checkpoints",
                keep=run.checkpoint.keep,
                keep_every=run.checkpoint.keep_every,
                on_durable=lambda step: self._committed(step, link),
                before=lambda: self._rows.sync(),  # of steps that are not done again
                note=console.note,
                disk_seconds=run.checkpoint.disk_seconds,
            )
        )
        restored = restore(run, policy, critic, checkpoints, self._world, console.note)
        extra = restored[1] if restored else {}
        first = checkpoints.latest() or 0
        self._go_on(first)
        begins = workdir.fork.step if workdir.fork else 0
        changes, _ = settled(workdir.changes, first, begins, self._world)
        self._plan = self._plan.at(changes, first)
        if run != self._plan.run:
            before, run = run, self._plan.run
            self._run = run
            policy, critic = self._makers.programs(run, self._plan.mesh)
            if restored and lies_elsewhere(before, run):
                restored = None  # room for what is read
                restored = restore(run, policy, critic, checkpoints, self._world, console.note)
        for line in lines(workdir.changes, step=first):
            console.note(line)
        trackers = self._trackers(first)
        stack.enter_context(sending_home(link, manager))
        stack.enter_context(showing_fleet(self._thread, link, console, self._path))
        # The fleet starts now, while the learner warms up and compiles.
        with console.phase("starting the manager and its fleet"):
            window = window_of(extra) if restored else None
            told = tuple(str(e)[:MAX_LINE] for e in workdir.changes if e.step == first)
            link.connect(TrainerHello(run_id=self._workdir.run_id, window=window, changes=told))
        if run.observe.page.serve and (line := page_line(self._path)):
            console.note(line)
        if restored:
            whole = self._plan.published.num_steps
            console.note(f"going on with step {first}: {first} of {whole} are done")
        ready = prepared(
            *(run, self._path, policy, critic, checkpoints, restored, console), begins=begins
        )
        kept = restored_versions(checkpoints, first, extra, ready.state.params, run)
        store = self._makers.snapshots(
            self._path / FOLDER,
            dtype=run.weights.rollout_dtype,
            keep=run.weights.keep_versions,
            others=followers.written,
        )
        base = None
        if ready.policy.base is not None:
            with console.phase("copying the base for servers"):
                base = published_base(
                    ready.policy.base, followers, store, run.checkpoint.disk_seconds
                )
            check_same(base.digest, extra, self._path)
        puller = puller_of(run.algorithm.lag, self._world.count, kept, base)
        scores = opened_scores(run, self._path / FOLDER, manager.seal_key, link, console)
        reserved = self._reserved(ready, manager, link, profile, puller, first)
        publisher = self._publisher(store, manager, link, profile)
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
            until=next_change(workdir.changes, first),
            prompts_used=extra.get("prompts_used", 0),
            kept=kept,
            base=base,
            scores=scores,
            episodes=episodes,
            link=link,
            load=load_of(run.algorithm.lag, self._world.count, reserved, publisher, base),
            publisher=publisher,
            checkpoints=checkpoints,
            best=BestCheckpoint(self._path, checkpoints) if run.evaluation.keep_best else None,
            followers=followers,
            note=console.note,
            spans=profile.spans,
        )
        return OpenedSession(
            session=session,
            workdir=workdir,
            profile=profile,
            trackers=trackers,
            rows=self._rows,
            first=first,
        )

    def _begin(self) -> None:
        """Write the files a folder needs when a run starts, or resumes."""
        workdir, run, fork = self._workdir, self._run, self._workdir.fork
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

    def _episodes(self, exercises: Exercises, link: ManagerLink) -> Environments | None:
        """Connect the environment, whose questions are answered from here on; None without one."""
        if not isinstance(exercises, EpisodeExercises):
            return None
        environments = Environments(exercises, self._run.environment.max_turns)
        environments.connect(self._path, self._workdir.run_id, answer=link.answer, fail=link.fail)
        link.parked = environments.take
        return environments

    def _manager(self) -> tuple[ManagerProcess, ManagerLink]:
        """Manager process and link, neither of them started."""
        self._thread = EventLoopThread()
        self._stack.callback(self._thread.close)
        manager = self._makers.manager(self._path, self._workdir.run_id)
        self._stack.callback(manager.close)
        if self._workdir.config_changed:
            manager.dismiss()  # it serves the configuration of before
        versions = 1 + self._run.algorithm.lag
        return manager, self._makers.link(self._thread, locate=manager.locate, versions=versions)

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

    def _committed(self, step: int, link: ManagerLink) -> None:
        """Make the events of a checkpoint's steps durable, then tell the manager, which forgets
        their tokens. Runs in the thread that waits for checkpoints.
        """
        durable.sync(self._path / events_file.FILE)
        durable.sync_folder(self._path)
        if step:
            link.committed(Batch(step - 1))
            forget(self._path / FOLDER_OF_EPISODES, step - 1)

    def _reserved(
        self,
        ready: Prepared,
        manager: ManagerProcess,
        link: ManagerLink,
        profile: StepProfile,
        puller: PullerLike | None,
        first: int,
    ) -> ReservedEngines:
        """Create the trainer's own engines, which begin to join the fleet."""
        run, makers = self._run, self._makers
        with self._console.phase("compiling the engine's programs"):
            taken_bytes = learner_bytes_per_device(run) + ready.working_bytes
            with compile_cache.recorded() as programs:
                engines = [
                    makers.engine(self._plan.own, taken_bytes=taken_bytes, devices=devices)
                    for devices in devices_of_slices(self._plan.mesh, run.engine.tensor_parallel)
                ]
        self._console.note(str(engines[0].memory))
        fingerprint = engines[0].fingerprint if run.deterministic else ""
        for line in host_lines(self._path, first, fingerprint, processes=self._world.count):
            self._console.note(line)
        reserved = makers.reserved(
            run,
            engines,
            self._thread,
            on_failure=link.fail,
            puller=puller,
            spans=profile.spans,
            clock=profile.clock,
        )
        self._stack.callback(reserved.close)
        reserved.connect(manager.locate)
        self._offer(programs, manager)
        return reserved

    def _offer(self, programs: Sequence[str], manager: ManagerProcess) -> None:
        """Offer the engine's programs to servers of the same kind; without them they compile."""
        if not programs or (cache := compile_cache.place()) is None:
            return
        try:
            folder, key = self._path / COMPILED, manager.seal_key()
            offer(folder, compile_cache.kind(), cache, programs, key)
        except (OSError, CredentialsUnusable) as error:
            self._console.note(f"servers compile by themselves: {error}")

    def _publisher(
        self,
        store: SnapshotStore,
        manager: ManagerProcess,
        link: ManagerLink,
        profile: StepProfile,
    ) -> Publisher:
        publisher = Publisher(
            store,
            announce=lambda manifest: link.publish(sealed(manifest, manager.seal_key())),
            in_use=lambda: link.status.versions_in_use if link.status else (),
            report=self._console.note,
            spans=profile.spans,
            disk_seconds=self._run.checkpoint.disk_seconds,
        )
        self._stack.callback(publisher.close)
        return publisher
