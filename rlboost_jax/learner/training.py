"""Set a run up, let its loop run, and take everything down again."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from rlboost_jax import compile_cache
from rlboost_jax.environments.journal import FOLDER as FOLDER_OF_EPISODES
from rlboost_jax.environments.journal import forget
from rlboost_jax.host.garbage import seldom_collected
from rlboost_jax.learner.checkpoints.forking import origin_to_begin_with
from rlboost_jax.learner.compiling import show_compiles
from rlboost_jax.learner.evaluation.measurement import Score
from rlboost_jax.learner.loop import TrainingLoop
from rlboost_jax.learner.processes.world import ALONE, World
from rlboost_jax.learner.session import Session
from rlboost_jax.learner.setup.complete import complete
from rlboost_jax.learner.setup.makers import Makers, plan_of
from rlboost_jax.learner.setup.opening import Opening
from rlboost_jax.models.collectives import add_in_order
from rlboost_jax.observe.alert_process import check_alerts, start_alerts
from rlboost_jax.observe.cost import Forecast
from rlboost_jax.observe.diagnostics import Diagnostics
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.observe.report import write_report
from rlboost_jax.observe.summary import Summary, summarize, write_summary
from rlboost_jax.settings.load import Origin, read_run_id
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.storage.disk_thread import DiskThread
from rlboost_jax.supervision.pulse import PULSE

T = TypeVar("T")


def run_training(
    run: RunConfig,
    path: str | Path,
    world: World = ALONE,
    *,
    fork: str = "",
    makers: Makers | None = None,
    loop: Callable[[Session], TrainingLoop] = TrainingLoop,
) -> Summary:
    """Train `run` in the folder `path`, going on where an earlier start ended. Of a complete run
    nothing is started.

    Args:
        world: the processes of this trainer; this one is number 0.
        fork: RUN@STEP, the checkpoint of another run to begin with; "": none.
        makers, loop: who makes what the run is made of; a test gives others.

    Raises:
        WorkdirUnusable, NotEnoughDevices, IdleProcess: before anything is written.
        NotEnoughMemory: before anything is written where the plan says so; else once learner and
            engine are seen not to fit the first device together.
        ConfigError, DataChanged: the data or the reward functions cannot be used.
        CannotFork, CheckpointBroken: the run cannot begin with that checkpoint of another.
        OriginChanged, CheckpointUnusable: nor can the checkpoint to begin with.
        FollowerLost: another process of this trainer ended.
        AttentionNotAvailable, KernelNotAvailable: this device cannot run what is named, or what a
            deterministic run has begun with.
        ManagerNotStarted, ManagerLost, NotFinite: the run stops; what was checkpointed stays.
    """
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
        return done
    if not read_metrics(path):  # of a run that has begun nothing informing stands in the way
        check_alerts(run.observe.alerts)
    while (summary := _session(run, path, world, origin, makers, loop)) is None:
        pass  # recorded changes of settings apply from the next step on
    _on_disk(lambda: write_report(path), "report", path, run)
    return summary


def _session(
    run: RunConfig,
    path: Path,
    world: World,
    origin: Origin | None,
    makers: Makers,
    loop: Callable[[Session], TrainingLoop],
) -> Summary | None:
    """Steps with the same settings, to the end of the run; None: there are others to do."""
    plan = plan_of(run, path, world, makers, origin)  # before the first device is touched
    with contextlib.ExitStack() as stack:
        with seldom_collected():
            opened = Opening(plan, path, world, stack, makers).open()
        start_alerts(run.observe.alerts, opened.workdir.path)
        steps = loop(opened.session)
        before = read_metrics(path)
        forecast, looked = Forecast(plan.run.num_steps, before), Diagnostics(plan.run, before)
        until = opened.session.until
        for step in range(opened.first, until or plan.run.num_steps):
            opened.profile.at(step)
            row = steps.step(step)
            opened.trackers.step({**row, "cost_forecast_dollars": forecast.after(row)})
            for line in looked.after(row):
                opened.session.note(line)
            with PULSE.phase("checkpoint"):
                steps.save(step + 1)
            PULSE.step()
        if until is not None:
            opened.session.followers.again()
            opened.session.checkpoints.wait()
            return None
        score = steps.final_score()
        opened.session.checkpoints.wait()  # only then is nothing left to go on with
        place, done = opened.workdir.path, plan.run
        summary = _on_disk(lambda: _summary(done, place, score), "summary", place, done)
        opened.trackers.finish(summary)
        episodes = place / FOLDER_OF_EPISODES
        _on_disk(lambda: forget(episodes, done.num_steps), "answers", episodes, done)
    return summary


def _on_disk(call: Callable[[], T], what: str, folder: Path, run: RunConfig) -> T:
    """What is done at the end, on a disk that may hang as at any other time. Raises DiskStalled."""
    with DiskThread("the end", stall_seconds=run.checkpoint.disk_seconds) as disk:
        return disk.submit(call, what, folder).result()


def _summary(run: RunConfig, path: Path, score: Score | None) -> Summary:
    """Write `summary.json` from the rows of the run.

    Args:
        score: after the last update; the rows have it of the policies before.
    """
    summary = summarize(
        read_metrics(path), reserved_price_per_hour=run.fleet.reserved_price_per_hour
    )
    if score is not None and not math.isnan(score.accuracy):
        summary = replace(summary, last_accuracy=score.accuracy)
    write_summary(path, summary)
    return summary
