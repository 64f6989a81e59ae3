"""Train.

    rlboost train --config=quickstart --workdir=runs/quickstart

`--config` takes a file, or the name of a configuration that comes with the package (`rlboost
configs` lists them). Any field can be set with `--config.section.field=value`. `--dry_run` prints
the plan, reads the data, loads the reward functions and touches no device; `--no_data` leaves out
the data and the functions. The same command resumes a run that was stopped or killed; `--supervise`
gives it by itself as often as it takes. `--fork` begins with a checkpoint of another run
(docs/how-to/changing.md). `rlboost_jax/platform/exits.py` has the exit codes.
Notebooks call `train(config, workdir)`.
"""

from rlboost_jax.platform.huge_pages import start_with_huge_pages

if __name__ == "__main__":  # before the imports below, which would be made twice
    start_with_huge_pages()

import contextlib
import math
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from rlboost_jax.learner.workdir import check_usable
from rlboost_jax.observe.summary import Summary, headline
from rlboost_jax.platform import disk_thread, exits, stacks
from rlboost_jax.platform.exhaustion import exhausted, passing
from rlboost_jax.platform.garbage_collection import seldom_collected
from rlboost_jax.platform.interrupts import raise_at
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.output_relay import Relay, speak_through_relay
from rlboost_jax.platform.pulse import show_pulse
from rlboost_jax.platform.without_memory import leave_without_memory
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.config_loading import read_run_config, run_config
from rlboost_jax.settings.dry_run import plan_line, plan_text
from rlboost_jax.settings.explain import explain
from rlboost_jax.settings.memory_estimates import size_text, weight_bytes
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.task_sizes import DATASET, ENVIRONMENT
from rlboost_jax.settings.teacher_models import teacher_models

if TYPE_CHECKING:
    from rlboost_jax.learner.processes.process_group import ProcessGroup

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made where missing.")
_FORK = flags.DEFINE_string(
    "fork", "", "RUN@STEP, RUN@best or RUN@newest: a checkpoint of another run to begin with."
)
_DRY_RUN = flags.DEFINE_bool(
    "dry_run", False, "Print the resolved plan, open data, call reward functions once, and stop."
)
_NO_DATA = flags.DEFINE_bool("no_data", False, "With --dry_run: leave data and rewards unopened.")
_EXPLAIN = flags.DEFINE_string("explain", None, "Say what a setting or a section is, and stop.")
_COORDINATOR = flags.DEFINE_string(
    "coordinator", None, "HOST:PORT of process 0, where the trainer has several processes."
)
_NUM_PROCESSES = flags.DEFINE_integer(
    "num_processes", None, "With --coordinator: how many.", lower_bound=1
)
_PROCESS_INDEX = flags.DEFINE_integer(
    "process_index", None, "With --coordinator: which one this is.", lower_bound=0
)
_CLUSTER = flags.DEFINE_bool(
    "cluster", False, "Take these three from Slurm, Open MPI, Kubernetes or the TPU's environment."
)
_SUPERVISE = flags.DEFINE_bool("supervise", False, "Start again when killed or broken.")
_MAX_RESTARTS = flags.DEFINE_integer(
    "max_restarts", 5, "With --supervise: how often in a row without progress.", lower_bound=0
)
_STALL_SECONDS = flags.DEFINE_string(
    "stall_seconds",
    "auto",
    "With --supervise: end and start again a trainer that shows no progress for so long; 'auto': "
    "learnt from its steps, 0: never.",
)


class Interrupted(KeyboardInterrupt):
    """A signal asked this process to end; the argument is its number."""


def train(
    config: ConfigDict, workdir: str, world: "ProcessGroup | None" = None, *, fork: str = ""
) -> Summary:
    """Run `config` to its end in `workdir`, or go on with the run that is there.

    In a notebook it shows its progress and the report under the cell.

    Args:
        world: the processes of this trainer; this one is number 0. None: it is alone.
        fork: RUN@STEP, the checkpoint of another run to begin with; "": none.

    Raises:
        ConfigError, WorkdirUnusable, RuntimeError: one line that says what to change.
        KeyboardInterrupt: the same call goes on.
    """
    run = run_config(config, workdir)  # before anything heavy is imported
    check_usable(workdir, run)  # so is most of what Workdir would refuse
    with seldom_collected():
        from rlboost_jax.learner.notebook_run import run_shown
        from rlboost_jax.learner.processes.process_group import ALONE

    return run_shown(run, workdir, world or ALONE, fork=fork)


def main(argv: list[str]) -> None:
    raise_at((signal.SIGTERM, signal.SIGINT), Interrupted)
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file at INFO
    stacks.dump_when_asked()
    show_pulse(os.environ)
    several = False  # processes of this trainer
    try:
        if _EXPLAIN.value is not None:
            print(explain(_EXPLAIN.value))
            return
        if _CONFIG.value is None:
            raise ConfigError("no --config given; name one, such as --config=quickstart, or a file")
        if _DRY_RUN.value:
            run = run_config(_CONFIG.value)
            _plan(run, _WORKDIR.value or "")
            if not _NO_DATA.value:
                _open_data(run)
            return
        if not _WORKDIR.value:
            raise ConfigError("no --workdir given; name the folder of the run")
        relay = speak_through_relay()  # from here on nothing that is printed waits for a reader
        if _SUPERVISE.value:
            run_config(_CONFIG.value, _WORKDIR.value)  # a mistake is one for every start
            if _CLUSTER.value:
                raise ConfigError("--supervise and --cluster; let the cluster start them again")
            sys.exit(_supervise(_WORKDIR.value, relay))
        disk_thread.listen(lambda stall: exits.leave_soon(f"error: {stall}", exits.BROKEN))
        leave_without_memory()  # but not the supervisor, whose trainer would go on without it
        world = _world()
        several = world is not None and world.count > 1
        if world is not None and not world.leads:
            from rlboost_jax.learner.processes.follower import follow_training

            follow_training(run_config(_CONFIG.value, _WORKDIR.value), _WORKDIR.value, world)
            return
        summary = train(_CONFIG.value, _WORKDIR.value, world, fork=_FORK.value)
    except Exception as error:
        # Errors of ours and of the system explain themselves; others are mistakes in the code.
        # What this host lacks for a while is no mistake, wherever it was met.
        ours = type(error).__module__.startswith("rlboost_")
        at_once = several or exits.threads_left()
        if line := passing(error) if ours else exhausted(error):
            exits.leave(f"error: {line}", exits.BROKEN, at_once=at_once)
        if not (ours or isinstance(error, OSError)):
            if at_once:
                traceback.print_exc()
                exits.leave(f"error: {error}", exits.BROKEN, at_once=True)
            raise
        exits.leave(f"error: {error}", exits.of_error(error), at_once=at_once)
    except KeyboardInterrupt as interrupt:
        line = "interrupted; the same command goes on"
        at_once = several or exits.threads_left()
        exits.leave(line, exits.of_error(interrupt), at_once=at_once)
    print(headline(summary))
    for line in _last_lines(read_run_config(_WORKDIR.value), summary, _WORKDIR.value):
        print(line)


def _last_lines(run: RunConfig, summary: Summary, workdir: str) -> Iterator[str]:
    """Yield the results of a complete run, and what can be done with them."""
    if summary.params_digest:
        yield f"final weights: {summary.params_digest}"
    if run.deterministic and run.fleet.chaos.enabled:
        yield (
            "run it again in another folder: other servers die, the weights are the same; "
            f"rlboost compare {workdir} FOLDER shows it"
        )
    yield f"report: {workdir}/report.html"


def _plan(run: RunConfig, workdir: str) -> None:
    """Print the resolved plan.

    Raises ConfigError where a teacher is missing, NotEnoughMemory where the run does not fit
    `learner.device_gb`.
    """
    print(plan_text(run, workdir=workdir))
    if teachers := teacher_models(run):
        each = (
            f"{model.source} {size_text(weight_bytes(model, model.dtype))}" for model in teachers
        )
        where = "on each server" if run.distillation.on_servers else "over the learner's devices"
        print(plan_line("teachers", f"{where}: {', '.join(each)}"))
    if run.algorithm.outside_functions:
        from rlboost_jax.learner.programs.objective import check_traced  # looks for no device

        check_traced(run.algorithm)
    if run.fleet.provider == "kubernetes":
        from rlboost_jax.providers.kubernetes.manifests import shown

        address = run.fleet.public_address or f"{run.manager.host}:{run.manager.port or 'PORT'}"
        print(plan_line("manifests", "of each server, with names of its own:"))
        print(shown(run.fleet, address=address), end="")
    if run.learner.device_gb:
        from rlboost_jax.learner.setup import fit  # imports JAX, which looks for no device

        needed, limit = fit.needs(run), int(run.learner.device_gb * 1e9)
        fit.check(run, needed, limit)
        print(plan_line("memory", fit.line(needed, limit)))


def _open_data(run: RunConfig) -> None:
    """Read the rows, open the environment or call the reward functions, and print what was found.

    Raises ConfigError, as a start would.
    """
    if run.task.name not in (DATASET, ENVIRONMENT):
        return  # generated
    with seldom_collected():
        from rlboost_jax.data.first_call import first_call_lines
        from rlboost_jax.data.open import record_lines
        from rlboost_jax.environments.run_exercises import exercises_of

    with contextlib.closing(exercises_of(run, note=print)) as exercises:
        for line in record_lines(exercises.record) if exercises.record is not None else ():
            print(plan_line("data", line))
        for line in first_call_lines(run, exercises) if run.task.name == DATASET else ():
            print(plan_line("reward", line))


def _world() -> "ProcessGroup | None":
    """Gather the processes of this trainer; None: it is alone.

    Raises ConfigError, CannotJoin.
    """
    given = (_COORDINATOR.value, _NUM_PROCESSES.value, _PROCESS_INDEX.value)
    if _CLUSTER.value:
        if any(value is not None for value in given):
            raise ConfigError("--cluster finds --coordinator and its like; give one or the other")
        given = ("", 0, 0)
    elif all(value is None for value in given):
        return None
    coordinator, count, index = given
    if coordinator is None or count is None or index is None:
        raise ConfigError("--coordinator, --num_processes and --process_index go together")
    if not _CLUSTER.value and index >= count:
        raise ConfigError(f"--process_index={index}; of {count} processes the last is {count - 1}")
    from rlboost_jax.learner.processes.process_group import join

    return join(coordinator, count, index)


def _supervise(workdir: str, relay: Relay | None) -> int:
    """Run this process's own command, less the supervision, until it is complete."""
    from rlboost_jax.learner.supervisor import Supervisor

    command = [sys.executable, "-m", "rlboost_jax.main", *sys.argv[1:], "--nosupervise"]
    supervisor = Supervisor(
        command,
        Path(workdir),
        max_restarts=_MAX_RESTARTS.value,
        leads=not _PROCESS_INDEX.value,
        stall_seconds=_stall_seconds(_STALL_SECONDS.value),
        process=_PROCESS_INDEX.value or 0,
        speaks_to=(relay.out, relay.err) if relay else (None, None),
    )
    return supervisor.run()


def _stall_seconds(text: str) -> float | None:
    """Parse `--stall_seconds`; raises ConfigError."""
    if text == "auto":
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < math.inf:
        raise ConfigError(f"--stall_seconds={text}; 'auto', 0 for never, or seconds")
    return seconds


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
