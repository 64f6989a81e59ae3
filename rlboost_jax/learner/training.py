"""Set a run up, let its loop run, and take everything down again."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlboost_jax import compile_cache
from rlboost_jax.config.memory import learner_bytes_per_device
from rlboost_jax.config.records import RunConfig
from rlboost_jax.config.sources import WEIGHTS, source_folder
from rlboost_jax.data.tasks import Task, get_task
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.link import EventLoopThread, ManagerLink
from rlboost_jax.learner.loop import TrainingLoop, checkpoint_extra, window_of
from rlboost_jax.learner.manager_process import ManagerProcess
from rlboost_jax.learner.publisher import Publisher
from rlboost_jax.learner.reserved import ReservedEngine
from rlboost_jax.learner.state import TrainState, abstract_state, init_state
from rlboost_jax.learner.step import LearnerStep
from rlboost_jax.learner.warmup import warm_up
from rlboost_jax.messages import TrainerHello
from rlboost_jax.models.checkpoint_files import read_checkpoint
from rlboost_jax.models.params import Params, init_params
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.observe.console import Console
from rlboost_jax.observe.metrics import MetricsWriter, read_metrics
from rlboost_jax.observe.report import write_report
from rlboost_jax.observe.summary import Summary, summarize, write_summary
from rlboost_jax.observe.tensorboard import TensorBoardWriter
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.weights.seal import sealed
from rlboost_jax.weights.snapshots import SnapshotStore
from rlboost_jax.workdir import Workdir

LOOK_SECONDS = 0.25  # between two looks at the fleet, for the live view


def run_training(run: RunConfig, path: str | Path) -> Summary:
    """Train `run` in the folder `path`, going on where an earlier start ended.

    Raises:
        WorkdirUnusable, NotEnoughDevices: before anything is written.
        NotEnoughMemory: learner and engine do not fit the first device together.
        ManagerNotStarted, ManagerLost, NotFinite: the run stops; what was checkpointed stays.
    """
    compile_cache.enable(run.compile_cache_dir)
    mesh = make_mesh(run.learner.mesh)
    with contextlib.ExitStack() as stack:
        workdir = stack.enter_context(Workdir(path, run))
        console = stack.enter_context(
            Console(
                num_steps=run.num_steps,
                reserved_price_per_hour=run.fleet.reserved_price_per_hour,
                live=run.observe.live,
            )
        )
        task = get_task(run.task)
        learner = LearnerStep(
            run.model,
            run.learner,
            run.algorithm,
            run.sampling,
            num_steps=run.num_steps,
            mesh=mesh,
        )
        thread = EventLoopThread()
        stack.callback(thread.close)
        manager = ManagerProcess(workdir.path, workdir.run_id)
        stack.callback(manager.close)
        if workdir.config_changed:
            manager.dismiss()  # it serves the configuration of before
        link = ManagerLink(thread, locate=manager.locate)
        checkpoints = stack.enter_context(
            Checkpoints(
                workdir.path / "checkpoints",
                keep=run.checkpoint.keep,
                on_durable=lambda step: link.committed(step - 1) if step else None,
            )
        )
        restored = _restore(run, learner, checkpoints)
        first = checkpoints.latest() or 0
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
            state = restored[0]
            console.note(f"going on with step {first + 1} of {run.num_steps}")
        else:
            state = _start(run, task, learner, console)
            checkpoints.save(0, state, checkpoint_extra(None))
        reference = _reference(run, workdir.path, learner, state)
        with console.phase("compiling the learner's programs"):
            working_bytes = learner.compile(
                state,
                reference,
                rows=run.learner.pack_rows,
                row_tokens=run.learner.row_tokens or run.slot_tokens,
            )

        with console.phase("compiling the engine's programs"):
            engine = engine_of(run, taken_bytes=learner_bytes_per_device(run) + working_bytes)
        console.note(str(engine.memory))
        reserved = ReservedEngine(run, engine, thread, on_failure=link.fail)
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
        )
        stack.callback(publisher.close)
        loop = TrainingLoop(
            run,
            task=task,
            learner=learner,
            state=state,
            reference=reference,
            link=link,
            reserved=reserved,
            publisher=publisher,
            checkpoints=checkpoints,
        )
        metrics = stack.enter_context(MetricsWriter(workdir.path, step=first))
        board = None
        if run.observe.tensorboard:
            board = TensorBoardWriter(workdir.path, step=first)
            stack.callback(board.close)
        for step in range(first, run.num_steps):
            row = metrics.write(loop.step(step))
            console.step(row)
            if board is not None:
                board.write(row)
            loop.save(step + 1)
        accuracy = loop.final_accuracy(run.num_steps)
    return _finish(run, workdir.path, accuracy)


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
    run: RunConfig, learner: LearnerStep, checkpoints: Checkpoints
) -> tuple[TrainState, dict[str, Any]] | None:
    """The newest checkpoint; None at the first start."""
    newest = checkpoints.latest()
    if newest is None:
        return None
    return checkpoints.restore(newest, abstract_state(run.model, learner.optimizer, learner.mesh))


def _start(run: RunConfig, task: Task, learner: LearnerStep, console: Console) -> TrainState:
    """Fresh parameters, or those of the checkpoint to begin with, warmed up."""
    params = _first_params(run, learner.shardings.params, console)
    if run.warmup.max_updates:
        reports: list[tuple[int, float]] = []
        with console.phase(f"warming the model up on the {task.name} task"):
            params = warm_up(
                run, task, params, mesh=learner.mesh, report=lambda *report: reports.append(report)
            )
        for updates, loss in reports[-1:]:
            console.note(f"  {updates} supervised updates, loss {loss:.3f} nats per token")
    return init_state(params, learner.optimizer, learner.shardings, consume=True)


def _first_params(run: RunConfig, shardings: Params, console: Console) -> Params:
    source = run.model.source
    if not source:
        return init_params(run.model, run.seed, shardings=shardings)
    with console.phase(f"reading the parameters of {source}"):
        return read_checkpoint(run.model, source_folder(source, WEIGHTS), shardings=shardings)


def _reference(
    run: RunConfig, path: Path, learner: LearnerStep, state: TrainState
) -> Params | None:
    """The starting parameters that the KL term is taken to; None without such a term."""
    if run.algorithm.kl_coefficient == 0:
        return None
    with Checkpoints(path / "reference", keep=1) as kept:
        if kept.latest() is None:
            kept.save(0, state.params, {})
            kept.wait()
        abstract = abstract_state(run.model, learner.optimizer, learner.mesh)
        return kept.restore(0, abstract.params)[0]


def _finish(run: RunConfig, path: Path, accuracy: float | None) -> Summary:
    """Write `summary.json` and `report.html` from the rows of the run.

    Args:
        accuracy: after the last update; the rows have it of the policies before.
    """
    summary = summarize(
        read_metrics(path), reserved_price_per_hour=run.fleet.reserved_price_per_hour
    )
    if accuracy is not None:
        summary = replace(summary, last_accuracy=accuracy)
    write_summary(path, summary)
    write_report(path)
    return summary
