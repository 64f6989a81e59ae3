"""Train.

    rlboost train --config=quickstart --workdir=runs/quickstart

`--config` takes a file, or the name of a configuration that comes with the package (`rlboost
configs` lists them). Any field can be set with `--config.section.field=value`; `--dry_run` prints
the plan and touches no device. The same command goes on with a run that was stopped or killed;
`--supervise` gives it by itself as often as it takes. `--fork` begins with a checkpoint of another
run (docs/how-to/changing.md). `rlboost_jax/supervision/exits.py` has the exit codes.
Notebooks call `train(config, workdir)`.
"""

from rlboost_jax.host.huge_pages import start_with_huge_pages

if __name__ == "__main__":  # before the imports below, which would be made twice
    start_with_huge_pages()

import math
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from rlboost_jax.host.exhaustion import exhausted, passing
from rlboost_jax.host.garbage import seldom_collected
from rlboost_jax.host.interrupts import raise_at
from rlboost_jax.observe.summary import Summary, headline
from rlboost_jax.relay.start import Relay, speak_through_relay
from rlboost_jax.settings.command_line import parse
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.explain import explain
from rlboost_jax.settings.load import run_config
from rlboost_jax.settings.plan import plan_line, plan_text
from rlboost_jax.settings.run import RunConfig
from rlboost_jax.storage import disk_thread
from rlboost_jax.storage.workdir import check_usable
from rlboost_jax.supervision import exits, stacks
from rlboost_jax.supervision.pulse import show_pulse
from rlboost_jax.supervision.without_memory import leave_without_memory

if TYPE_CHECKING:
    from rlboost_jax.learner.processes.world import World

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made where missing.")
_FORK = flags.DEFINE_string(
    "fork", "", "RUN@STEP, RUN@best or RUN@newest: a checkpoint of another run to begin with."
)
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved plan and stop.")
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
    """Somebody asked this process to end; the argument is the signal's number."""


def train(
    config: ConfigDict, workdir: str, world: "World | None" = None, *, fork: str = ""
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
        from rlboost_jax.learner.notebook import run_shown
        from rlboost_jax.learner.processes.world import ALONE

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
            _plan(run_config(_CONFIG.value), _WORKDIR.value or "")
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
    print(f"report: {_WORKDIR.value}/report.html")


def _plan(run: RunConfig, workdir: str) -> None:
    """Print it; raise NotEnoughMemory where it does not fit `learner.device_gb`."""
    print(plan_text(run, workdir=workdir))
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


def _world() -> "World | None":
    """The processes of this trainer, once all have met; None: it is alone.

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
    from rlboost_jax.learner.processes.world import join

    return join(coordinator, count, index)


def _supervise(workdir: str, relay: Relay | None) -> int:
    """Give this process's own command, less the supervision, until it is done."""
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
    """Raises ConfigError."""
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
