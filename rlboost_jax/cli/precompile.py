"""Compile a run's engine on a host of the owner's, for servers of its kind.

    rlboost compile --workdir=runs/mine

The trainer does this for servers of its own kind. For another kind of device run it once on a host
of your own that has one and sees the run's folder; never on a machine that others may take.
Servers of that kind get the programs as they join, sealed with the run's key. Exit status: 0, or 2
on a mistake.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rlboost_jax.engine.engine import Engine
from rlboost_jax.platform import command_parser, compile_cache
from rlboost_jax.platform.mistakes import ConfigError, Mistake
from rlboost_jax.qualification.engine_start import server_run
from rlboost_jax.qualification.trial_host import HERE, Host
from rlboost_jax.rollout.instance import engine_of
from rlboost_jax.settings.config_loading import read_run_config
from rlboost_jax.settings.for_servers import for_servers
from rlboost_jax.trust.run_files import trainer_folder
from rlboost_jax.trust.seal import read_seal_key
from rlboost_jax.weights.compiled import FOLDER, offer


def main(
    arguments: Sequence[str] | None = None,
    *,
    host: Host = HERE,
    build: Callable[..., Engine] = Engine,
) -> int:
    """Compile; returns the exit status.

    Args:
        host: that servers are to run on, which is this one.
        build: makes the engine.
    """
    parser = command_parser.parser("compile", __doc__)
    parser.add_argument("--workdir", required=True, type=Path, help="of a run that has begun")
    workdir = parser.parse_args(arguments).workdir.absolute()
    try:
        run = for_servers(read_run_config(workdir))
        key = read_seal_key(trainer_folder(workdir))
        place = compile_cache.enable(run.compile_cache_dir)
        run = server_run(run, say=print, host=host)
        with compile_cache.recorded() as names:
            engine_of(run, announce=print, build=build)
        size = offer(workdir / FOLDER, compile_cache.kind(), place, names, key)
    except (ConfigError, Mistake, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{size / 1e6:,.1f} MB of programs for {compile_cache.kind()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
