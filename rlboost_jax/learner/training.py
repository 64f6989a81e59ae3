"""Set a run up, let its loop run, and take everything down again."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from rlboost_jax import compile_cache
from rlboost_jax.config.memory import learner_bytes_per_device
from rlboost_jax.config.records import RunConfig
from rlboost_jax.data.open import keep_record, open_exercises, record_lines
from rlboost_jax.learner import fit, kernels, orders
from rlboost_jax.learner.base import Base, check_same
from rlboost_jax.learner.best import BestCheckpoint
from rlboost_jax.learner.checkpoint_extra import window_of
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.evaluation import Score
from rlboost_jax.learner.followers import Followers, invite
from rlboost_jax.learner.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.manager_process import ManagerProcess
from rlboost_jax.learner.origin import keep_origin
from rlboost_jax.learner.preparation import prepared, programs, restore
from rlboost_jax.learner.processes import ALONE, World, agreed, check_mesh
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngines, devices_of_slices
from rlboost_jax.messages import TrainerHello
from rlboost_jax.models.params import Params, params_digest
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
from rlboost_jax.qualification.start import published_run, trainer_run
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.weights.seal import sealed
from rlboost_jax.weights.snapshots import SnapshotStore
from rlboost_jax.workdir import Workdir

LOOK_SECONDS = 0.25  # between two looks at the fleet, for the live view


def run_training(run: RunConfig, path: str | Path, world: World = ALONE) -> Summary:
    """Train `run` in the folder `path`, going on where an earlier start ended.

    Args:
        world: the processes of this trainer, of which this is number 0.

    Raises:
        WorkdirUnusable, NotEnoughDevices, IdleProcess: before anything is written.
        NotEnoughMemory: before anything is written where the plan says so; else once learner and
            engine are seen not to fit the first device together.
        ConfigError, DataChanged: the data or the reward functions cannot be used.
        OriginChanged, CheckpointUnusable: nor can the checkpoint to begin with.
        FollowerLost: another process of this trainer ended.
        AttentionNotAvailable, KernelNotAvailable: this device cannot run what is named, or what a
            deterministic run has begun with.
        ManagerNotStarted, ManagerLost, NotFinite: the run stops; what was checkpointed stays.
    """
    compile_cache.enable(run.compile_cache_dir)
    choices: list[str] = []
    own = trainer_run(run, Path(path), choices.append)  # before the first device is touched
    own = agreed(own, world)
    published = published_run(run, own)
    run = replace(published, learner=own.learner)
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    kernels.check(run, mesh)
    fit.check_devices(run, list(mesh.devices.flat), choices.append)
    with contextlib.ExitStack() as stack:
        workdir = stack.enter_context(Workdir(path, published))
        console = stack.enter_context(
            Console(
                num_steps=run.num_steps,
                reserved_price_per_hour=run.fleet.reserved_price_per_hour,
                live=run.observe.live,
            )
        )
        for line in choices:
            console.note(line)
        keep_origin(workdir.path, run.model.source)
        with console.phase(f"reading the data of task {run.task.name}"):
            exercises = open_exercises(run)
        stack.callback(exercises.close)
        if exercises.record is not None:
            keep_record(workdir.path, exercises.record)
            for line in record_lines(exercises.record):
                console.note(line)
        learner, critic = programs(run, mesh)
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
        restored = restore(run, learner, critic, checkpoints)
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
        state, reference, working_bytes = prepared(
            run, workdir.path, learner, critic, checkpoints, restored, console
        )
        store = SnapshotStore(
            workdir.path / "snapshots",
            dtype=run.weights.rollout_dtype,
            keep=run.weights.keep_versions,
        )
        base = None
        if learner.base is not None:
            with console.phase("copying the base for servers"):
                base = _published_base(learner.base, followers, store)
            check_same(base.digest, restored[1] if restored else {}, workdir.path)
        with console.phase("compiling the engine's programs"):
            taken_bytes = learner_bytes_per_device(run) + working_bytes
            engines = [
                engine_of(own, taken_bytes=taken_bytes, devices=devices)
                for devices in devices_of_slices(mesh, run.engine.tensor_parallel)
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
            store,
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
            base=base,
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


def _published_base(params: Params, followers: Followers, store: SnapshotStore) -> Base:
    """Written for servers, once for all versions of this start."""
    host_params = followers.gather(params, orders.BASE)
    store.write_base(host_params)
    digest = params_digest(host_params)
    return Base(params=host_params if followers else params, digest=digest)


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
