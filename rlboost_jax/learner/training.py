"""Set-up of a run, its loop, and its take-down."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from rlboost_jax.environments.environment_journal import FOLDER as FOLDER_OF_EPISODES
from rlboost_jax.environments.environment_journal import forget
from rlboost_jax.learner.checkpoints.forking import origin_to_begin_with
from rlboost_jax.learner.compiling import show_compiles
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.processes.process_group import ALONE, ProcessGroup
from rlboost_jax.learner.programs.objective import check_traced
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.setup.complete import complete
from rlboost_jax.learner.setup.makers import Makers, plan_of
from rlboost_jax.learner.setup.session_setup import SessionSetup
from rlboost_jax.learner.step_metrics import final_metrics
from rlboost_jax.learner.step_observers import step_observers
from rlboost_jax.models.collectives import add_in_order
from rlboost_jax.observe.alert_process import check_alerts, start_alerts
from rlboost_jax.observe.html_report import FILE as REPORT
from rlboost_jax.observe.html_report import write_report
from rlboost_jax.observe.metrics import read_metrics, read_rows
from rlboost_jax.observe.summary import Summary, summarize, write_summary
from rlboost_jax.platform import compile_cache
from rlboost_jax.platform.disk_thread import DiskThread
from rlboost_jax.platform.durable import PART
from rlboost_jax.platform.garbage_collection import seldom_collected
from rlboost_jax.platform.pulse import PULSE
from rlboost_jax.settings.config_loading import Origin, read_run_id
from rlboost_jax.settings.run_config import RunConfig

T = TypeVar("T")


def run_training(
    run: RunConfig,
    path: str | Path,
    world: ProcessGroup = ALONE,
    *,
    fork: str = "",
    makers: Makers | None = None,
    loop: Callable[[Session], TrainingLoop] = TrainingLoop,
) -> Summary:
    """Train `run` in the folder `path`, resuming an earlier start if there is one.

    Returns at once if the run is complete.

    Args:
        world: the processes of this trainer; this one is number 0.
        fork: RUN@STEP, the checkpoint of another run to begin with; "": none.
        makers, loop: factories of the run's parts and of its loop; tests replace them.

    Raises:
        WorkdirUnusable, NotEnoughDevices, IdleProcess: before anything is written.
        NotEnoughMemory: before anything is written where the plan says so; else once learner and
            engine are seen not to fit the first device together.
        ConfigError, DataChanged: the data, the reward functions or those of the algorithm cannot
            be used.
        CannotFork, CheckpointBroken: the run cannot begin with that checkpoint of another.
        OriginChanged, CheckpointUnusable: nor can the checkpoint to begin with.
        FollowerLost: another process of this trainer ended.
        AttentionNotAvailable, KernelNotAvailable: this device cannot run what is named, or what a
            deterministic run has begun with.
        ManagerNotStarted, ManagerLost, NotFinite: the run stops; what was checkpointed stays.
    """
    check_traced(run.algorithm)
    compile_cache.enable(run.compile_cache_dir)
    add_in_order(run.deterministic)
    show_compiles()
    path, makers = Path(path), makers or Makers()
    origin = origin_to_begin_with(fork, run, path)
    if world.count == 1 and (done := complete(run, path)) is not None:
        print(f"complete: all {run.num_steps} steps are done; a larger num_steps goes on")
        # What a trainer does last, if it was killed at its very end.
        forget(path / FOLDER_OF_EPISODES, run.num_steps)
        makers.manager(path, read_run_id(path)).see_off()
        if not (path / REPORT).exists() or (path / (REPORT + PART)).exists():
            _on_disk(lambda: write_report(path), "report", path, run)
        return done
    if not read_metrics(path):  # a broken alert may keep a run from starting, never from resuming
        check_alerts(run.observe.alerts)
    while (summary := _session(run, path, world, origin, makers, loop)) is None:
        pass  # recorded changes of settings apply from the next step on
    _on_disk(lambda: write_report(path), "report", path, run)
    return summary


def _session(
    run: RunConfig,
    path: Path,
    world: ProcessGroup,
    origin: Origin | None,
    makers: Makers,
    loop: Callable[[Session], TrainingLoop],
) -> Summary | None:
    """Run the steps that have the same settings; None if steps with other settings follow."""
    plan = plan_of(run, path, world, makers, origin)  # before the first device is touched
    with contextlib.ExitStack() as stack:
        with seldom_collected():
            opened = SessionSetup(plan, path, world, stack, makers).open()
        start_alerts(run.observe.alerts, opened.workdir.path)
        steps = loop(opened.session)
        observers = step_observers(opened.session, opened.trackers, plan.run, read_metrics(path))
        until = opened.session.until
        for step in range(opened.first, until or plan.run.num_steps):
            opened.profile.at(step)
            finished = steps.step(step)
            for observe in observers:
                observe(finished)
            del finished  # a batch of tokens
            with PULSE.phase("checkpoint"):
                steps.save(step + 1)
            PULSE.step()
        if until is not None:
            opened.session.followers.again()
            opened.session.checkpoints.wait()
            return None
        place, done = opened.workdir.path, plan.run
        if (found := steps.final_score()) is not None:
            score, report = found
            opened.trackers.evaluated(final_metrics(score, report, num_steps=done.num_steps))
        opened.rows.written()
        opened.session.checkpoints.wait()  # only then is nothing left to go on with
        summary = _on_disk(lambda: _summary(done, place), "summary", place, done)
        opened.trackers.finish(summary)
        episodes = place / FOLDER_OF_EPISODES
        _on_disk(lambda: forget(episodes, done.num_steps), "answers", episodes, done)
    return summary


def _on_disk(call: Callable[[], T], what: str, folder: Path, run: RunConfig) -> T:
    """Do the final work on a disk that may hang, with a bound. Raises DiskStalled."""
    with DiskThread("the end", stall_seconds=run.checkpoint.disk_seconds) as disk:
        return disk.submit(call, what, folder).result()


def _summary(run: RunConfig, path: Path) -> Summary:
    """Write `summary.json` from the rows of the run."""
    summary = summarize(
        read_rows(path), reserved_price_per_hour=run.fleet.as_billed().reserved_price_per_hour
    )
    write_summary(path, summary)
    return summary
