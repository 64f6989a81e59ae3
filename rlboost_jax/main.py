"""Train.

    python -m rlboost_jax.main --config=configs/quickstart.py --workdir=runs/quickstart

Any field can be set with `--config.section.field=value`; `--dry_run` prints the plan and
touches no device. The same command goes on with a run that was stopped or killed.
Notebooks call `train(config, workdir)`.
"""

import signal
import sys
from types import FrameType

from absl import app, flags, logging
from ml_collections import ConfigDict, config_flags

from rlboost_jax.config.load import run_config
from rlboost_jax.config.plan import plan_text
from rlboost_jax.observe.summary import Summary, headline

_CONFIG = config_flags.DEFINE_config_file("config", None, "Configuration file.", lock_config=True)
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run; made where missing.")
_DRY_RUN = flags.DEFINE_bool("dry_run", False, "Print the resolved plan and stop.")


def train(config: ConfigDict, workdir: str) -> Summary:
    """Run `config` to its end in `workdir`, or go on with the run that is there.

    Raises:
        ConfigError, WorkdirUnusable, RuntimeError: one line that says what to change.
    """
    run = run_config(config)  # before anything heavy is imported
    from rlboost_jax.learner.training import run_training

    return run_training(run, workdir)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}; options begin with --")
    signal.signal(signal.SIGTERM, _interrupt)
    logging.set_verbosity(logging.WARNING)  # Orbax tells of every file at INFO
    try:
        if _DRY_RUN.value:
            print(plan_text(run_config(_CONFIG.value), workdir=_WORKDIR.value or ""))
            return
        if not _WORKDIR.value:
            raise ValueError("no --workdir given; name the folder of the run")
        summary = train(_CONFIG.value, _WORKDIR.value)
    except (ValueError, RuntimeError, OSError) as error:
        # Mistakes of use, not of code, which their own text explains.
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the same command goes on")
    print(headline(summary))
    print(f"report: {_WORKDIR.value}/report.html")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    flags.mark_flags_as_required(["config"])
    app.run(main)
