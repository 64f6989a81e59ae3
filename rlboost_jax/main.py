"""Train.

    python -m rlboost_jax.main --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set with `--config.section.field=value`; `--dry_run` prints the plan and
touches no device. The same command goes on with a run that was stopped or killed;
`--supervise` gives it by itself as often as it takes. `rlboost_jax/exits.py` has the exit codes.
Notebooks call `train(config, workdir)`.
"""

import signal
import sys
from pathlib import Path
from types import FrameType

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from rlboost_jax import exits
from rlboost_jax.config.command_line import parse
from rlboost_jax.config.errors import ConfigError, Mistake
from rlboost_jax.config.load import run_config
from rlboost_jax.config.plan import plan_text
from rlboost_jax.observe.summary import Summary, headline

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made where missing.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved plan and stop.")
_SUPERVISE = flags.DEFINE_bool("supervise", False, "Start again when killed or broken.")
_MAX_RESTARTS = flags.DEFINE_integer(
    "max_restarts", 5, "With --supervise: how often in a row without progress.", lower_bound=0
)


class Interrupted(KeyboardInterrupt):
    """Somebody asked this process to end; the argument is the signal's number."""


def train(config: ConfigDict, workdir: str) -> Summary:
    """Run `config` to its end in `workdir`, or go on with the run that is there.

    Raises:
        ConfigError, WorkdirUnusable, RuntimeError: one line that says what to change.
    """
    run = run_config(config)  # before anything heavy is imported
    from rlboost_jax.learner.training import run_training

    return run_training(run, workdir)


def main(argv: list[str]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _interrupt)
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file at INFO
    try:
        if len(argv) > 1:
            raise ConfigError(f"unexpected argument {argv[1]!r}; options begin with --")
        if _CONFIG.value is None:
            raise ConfigError("no --config given; name a file such as configs/quickstart.py")
        if _DRY_RUN.value:
            print(plan_text(run_config(_CONFIG.value), workdir=_WORKDIR.value or ""))
            return
        if not _WORKDIR.value:
            raise ConfigError("no --workdir given; name the folder of the run")
        if _SUPERVISE.value:
            run_config(_CONFIG.value)  # a mistake is one for every start
            sys.exit(_supervise(_WORKDIR.value))
        summary = train(_CONFIG.value, _WORKDIR.value)
    except (ValueError, RuntimeError, OSError) as error:
        # Errors of ours and of the system explain themselves; others are mistakes in the code.
        if not (isinstance(error, OSError) or type(error).__module__.startswith("rlboost_")):
            raise
        exits.leave(
            f"error: {error}", exits.MISTAKE if isinstance(error, Mistake) else exits.BROKEN
        )
    except KeyboardInterrupt as interrupt:
        number = interrupt.args[0] if isinstance(interrupt, Interrupted) else signal.SIGINT
        exits.leave("interrupted; the same command goes on", exits.by_signal(number))
    print(headline(summary))
    print(f"report: {_WORKDIR.value}/report.html")


def _supervise(workdir: str) -> int:
    """Give this process's own command, less the supervision, until it is done."""
    from rlboost_jax.supervise import Supervisor

    command = [sys.executable, "-m", "rlboost_jax.main", *sys.argv[1:], "--nosupervise"]
    supervisor = Supervisor(command, Path(workdir), max_restarts=_MAX_RESTARTS.value)
    return supervisor.run()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


if __name__ == "__main__":
    app.run(main, flags_parser=parse)
