"""Set a run up, let its loop run, and take everything down again."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from rlboost_jax import compile_cache
from rlboost_jax.config.memory import learner_bytes_per_device
from rlboost_jax.config.records import RunConfig
from rlboost_jax.config.sources import WEIGHTS, source_folder
from rlboost_jax.data.exercises import Exercises
from rlboost_jax.data.open import keep_record, open_exercises, record_lines
from rlboost_jax.data.tasks import Task
from rlboost_jax.learner.best import BestCheckpoint
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.critic import CriticStep
from rlboost_jax.learner.evaluation import Score
from rlboost_jax.learner.followers import invite
from rlboost_jax.learner.following import accept
from rlboost_jax.learner.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.loop import TrainingLoop, checkpoint_extra, window_of
from rlboost_jax.learner.manager_process import ManagerProcess
from rlboost_jax.learner.packing import batch_shapes
from rlboost_jax.learner.processes import ALONE, World, check_mesh
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngines, devices_of_slices
from rlboost_jax.learner.state import TrainState, abstract_state, init_state
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.updates import learners_of
from rlboost_jax.learner.warmup import warm_up
from rlboost_jax.messages import TrainerHello
from rlboost_jax.models.checkpoint_files import read_checkpoint
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.observe.console import Console
from rlboost_jax.observe.cost import Forecast
from rlboost_jax.observe.files import FilesTracker
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.profile import StepProfile
from rlboost_jax.observe.report import write_report
from rlboost_jax.observe.summary import Summary, summarize, write_summary
from rlboost_jax.observe.tracker import Trackers
from rlboost_jax.observe.trackers import chosen_trackers
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.weights.seal import sealed
from rlboost_jax.weights.snapshots import SnapshotStore
from rlboost_jax.workdir import Workdir

LOOK_SECONDS = 0.25  # between two looks at the fleet, for the live view


class Silence:
    """The console of a process that shows nothing."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, line: str) -> None:
        pass


def run_training(run: RunConfig, path: str | Path, world: World = ALONE) -> Summary:
    """Train `run` in the folder `path`, going on where an earlier start ended.

    Args:
        world: the processes of this trainer, of which this is number 0.

    Raises:
        WorkdirUnusable, NotEnoughDevices, IdleProcess: before anything is written.
        ConfigError, DataChanged: the data or the reward functions cannot be used.
        FollowerLost: another process of this trainer ended.
        NotEnoughMemory: learner and engine do not fit the first device together.
        ManagerNotStarted, ManagerLost, NotFinite: the run stops; what was checkpointed stays.
    """
    compile_cache.enable(run.compile_cache_dir)
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    with contextlib.ExitStack() as stack:
        workdir = stack.enter_context(Workdir(path, run))
        console = stack.enter_context(
            Console(
                num_steps=run.num_steps,
                reserved_price_per_hour=run.fleet.reserved_price_per_hour,
                live=run.observe.live,
            )
        )
        with console.phase(f"reading the data of task {run.task.name}"):
            exercises = open_exercises(run)
        stack.callback(exercises.close)
        if exercises.record is not None:
            keep_record(workdir.path, exercises.record)
            for line in record_lines(exercises.record):
                console.note(line)
        learner, critic = _programs(run, mesh)
        followers = stack.enter_context(invite(world, workdir.run_id))
        thread = EventLoopThread()
        stack.callback(thread.close)
        manager = ManagerProcess(workdir.path, workdir.run_id)
        stack.callback(manager.close)
        if workdir.config_changed:
            manager.dismiss()  # it serves the configuration of before
        link = ManagerLink(thread, locate=manager.locate)
        followers.fail_to(link.fail)
        profile = stack.enter_context(StepProfile(run.observe, workdir.path, note=console.note))
        checkpoints = stack.enter_context(
            Checkpoints(
                workdir.path / "checkpoints",
                keep=run.checkpoint.keep,
                on_durable=lambda step: link.committed(step - 1) if step else None,
            )
        )
        restored = _restore(run, learner, critic, checkpoints)
        first = checkpoints.latest() or 0
        chosen = chosen_trackers(run, workdir.path, workdir.run_id, step=first, note=console.note)
        trackers = Trackers([FilesTracker(workdir.path, step=first), console, *chosen])
        stack.callback(trackers.close)  # after the fleet is sent home: it may take a minute
        stack.enter_context(_sending_home(link, manager))
        stack.enter_context(_showing_fleet(thread, link, console))
        # The fleet starts now, while the learner warms up and compiles.
        with console.phase("starting the manager and its fleet"):
            link.connect(
                TrainerHello(
                    run_id=workdir.run_id,
                    window=window_of(restored[1]) if restored else None,
                )
            )
        if restored:
            console.note(f"going on with step {first + 1} of {run.num_steps}")
        state, reference, working_bytes = _prepared(
            run, workdir.path, exercises, learner, critic, checkpoints, restored, console
        )
        with console.phase("compiling the engine's programs"):
            taken_bytes = learner_bytes_per_device(run) + working_bytes
            engines = [
                engine_of(run, taken_bytes=taken_bytes, device=device)
                for device in devices_of_slices(mesh)
            ]
        console.note(str(engines[0].memory))
        reserved = ReservedEngines(
            run,
            engines,
            thread,
            on_failure=link.fail,
            spans=profile.spans,
            clock=profile.clock,
        )
        stack.callback(reserved.close)
        reserved.connect(manager.locate)
        publisher = Publisher(
            SnapshotStore(
                workdir.path / "snapshots",
                dtype=run.weights.rollout_dtype,
                keep=run.weights.keep_versions,
            ),
            announce=lambda manifest: link.publish(sealed(manifest, manager.server_token())),
            in_use=lambda: link.status.versions_in_use if link.status else (),
            report=console.note,
            spans=profile.spans,
        )
        stack.callback(publisher.close)
        loop = TrainingLoop(
            run,
            exercises=exercises,
            learner=learner,
            state=state,
            reference=reference,
            link=link,
            reserved=reserved,
            publisher=publisher,
            checkpoints=checkpoints,
            best=BestCheckpoint(workdir.path, checkpoints) if run.evaluation.keep_best else None,
            prompts_used=restored[1]["prompts_used"] if restored else 0,
            critic=critic,
            followers=followers,
            note=console.note,
            show=trackers.samples,
            spans=profile.spans,
        )
        forecast = Forecast(run.num_steps, read_metrics(path))
        for step in range(first, run.num_steps):
            profile.at(step)
            row = loop.step(step)
            trackers.step({**row, "cost_forecast_dollars": forecast.after(row)})
            loop.save(step + 1)
        summary = _summary(run, workdir.path, loop.final_score())
        trackers.finish(summary)
    write_report(path)
    return summary


def follow_training(run: RunConfig, path: str | Path, world: World) -> None:
    """The part of a process other than 0 in `run_training`, until that is over.

    Raises:
        LeaderLost: process 0 ended before that.
        OtherFolder: `path` is not process 0's.
    """
    compile_cache.enable(run.compile_cache_dir)
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    learner, critic = _programs(run, mesh)
    path = Path(path)
    with (
        contextlib.closing(open_exercises(run)) as exercises,
        accept(world, path) as leader,
        Checkpoints(path / "checkpoints", keep=run.checkpoint.keep) as checkpoints,
    ):
        restored = _restore(run, learner, critic, checkpoints)
        state, reference, _ = _prepared(
            run, path, exercises, learner, critic, checkpoints, restored, Silence()
        )
        learners = learners_of(
            run, policy=learner, critic=critic, reference=reference, stop_ids=exercises.stop_ids
        )
        leader.obey(learners, state, checkpoints)


def _programs(run: RunConfig, mesh: Mesh) -> tuple[LearnerStep, CriticStep | None]:
    num_updates = run.num_steps * run.algorithm.updates_per_batch
    learner = LearnerStep(
        run.model, run.learner, run.algorithm, run.sampling, num_steps=num_updates, mesh=mesh
    )
    if not run.algorithm.has_critic:
        return learner, None
    critic = CriticStep(run.model, run.learner, run.algorithm, num_steps=num_updates, mesh=mesh)
    return learner, critic


def _prepared(
    run: RunConfig,
    path: Path,
    exercises: Exercises,
    learner: LearnerStep,
    critic: CriticStep | None,
    checkpoints: Checkpoints,
    restored: tuple[TrainState, dict[str, Any]] | None,
    console: Console | Silence,
) -> tuple[TrainState, Params | None, int]:
    """State, reference model and the working space of the compiled programs.

    Every process of a trainer does this, and in this order.
    """
    if restored:
        state = restored[0]
    else:
        state = _start(run, exercises, learner, console)
        if critic is not None:
            state = replace(state, critic=critic.init(state.params))
        checkpoints.save(0, state, checkpoint_extra(None, 0))
    reference = _reference(run, path, learner, state)
    shapes = batch_shapes(run.pack_rows, run.row_tokens, run.learner.row_lengths)
    with console.phase("compiling the learner's programs"):
        working_bytes = learner.compile(
            replace(state, critic=None),
            reference,
            shapes=shapes,
        )
        if critic is not None:
            critic.compile(state.critic, shapes=shapes)
    return state, reference, working_bytes


@contextlib.contextmanager
def _sending_home(link: ManagerLink, manager: ManagerProcess) -> Iterator[None]:
    """However the run ends, manager and servers do not stay behind.

    Of one that is not complete they leave the tokens so far in the manager's journal.
    """
    reason, over = "the trainer stopped", False
    try:
        yield
        reason, over = "the run is over", True
    except BaseException as error:
        reason = f"the trainer stopped: {type(error).__name__}"
        raise
    finally:
        if not link.end(reason, over=over):
            manager.dismiss()


@contextlib.contextmanager
def _showing_fleet(thread: EventLoopThread, link: ManagerLink, console: Console) -> Iterator[None]:
    """Show the fleet as the manager last described it, whatever the trainer waits for."""

    async def show() -> None:
        while True:
            if link.status is not None:
                console.fleet(link.status)
            await asyncio.sleep(LOOK_SECONDS)

    showing = thread.start(show())
    try:
        yield
    finally:
        showing.cancel()


def _restore(
    run: RunConfig, learner: LearnerStep, critic: CriticStep | None, checkpoints: Checkpoints
) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest checkpoint; None at the first start."""
    newest = checkpoints.latest()
    if newest is None:
        return None
    abstract = _abstract(run, learner)
    if critic is not None:
        abstract = replace(abstract, critic=critic.abstract())
    return checkpoints.restore(newest, abstract)


def _abstract(run: RunConfig, learner: LearnerStep) -> TrainState:
    return abstract_state(
        run.model,
        learner.optimizer,
        learner.mesh,
        moment_memory=run.learner.moment_memory,
    )


def _start(
    run: RunConfig, exercises: Exercises, learner: LearnerStep, console: Console | Silence
) -> TrainState:
    """Fresh parameters, or those of the checkpoint to begin with, warmed up."""
    params = _first_params(run, learner.shardings.params, console)
    if run.warmup.max_updates:
        assert isinstance(exercises, Task), "the configuration was checked for this"
        task = exercises
        reports: list[tuple[int, float]] = []
        with console.phase(f"warming the model up on the {task.name} task"):
            params = warm_up(
                run, task, params, mesh=learner.mesh, report=lambda *report: reports.append(report)
            )
        for updates, loss in reports[-1:]:
            console.note(f"  {updates} supervised updates, loss {loss:.3f} nats per token")
    return init_state(params, learner.optimizer, learner.shardings, consume=True)


def _first_params(run: RunConfig, shardings: Params, console: Console | Silence) -> Params:
    source = run.model.source
    if not source:
        return init_params(run.model, run.seed, shardings=shardings)
    with console.phase(f"reading the parameters of {source}"):
        return read_checkpoint(run.model, source_folder(source, WEIGHTS), shardings=shardings)


def _reference(
    run: RunConfig, path: Path, learner: LearnerStep, state: TrainState
) -> Params | None:
    """The starting parameters that the KL term is taken to; None without such a term."""
    if not run.algorithm.has_reference:
        return None
    with Checkpoints(path / "reference", keep=1) as kept:
        if kept.latest() is None:
            kept.save(0, state.params, {})
            kept.wait()
        return kept.restore(0, _abstract(run, learner).params)[0]


def _summary(run: RunConfig, path: Path, score: Score | None) -> Summary:
    """Write `summary.json` from the rows of the run.

    Args:
        score: after the last update; the rows have it of the policies before.
    """
    summary = summarize(
        read_metrics(path), reserved_price_per_hour=run.fleet.reserved_price_per_hour
    )
    if score is not None:
        summary = replace(summary, last_accuracy=score.accuracy)
    write_summary(path, summary)
    return summary
