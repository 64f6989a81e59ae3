"""Folders of runs, for tests of a manager in a process of its own."""

from pathlib import Path

from configs import tiny
from rlboost_jax.settings.config_loading import run_config, write_run_config


def begun(folder: Path, **fleet: object) -> Path:
    """The folder, of a tiny run called "run" that starts no servers.

    Args:
        fleet: more of its settings.
    """
    config = tiny.get_config()
    config.fleet.provider = "none"
    config.fleet.update(fleet)
    write_run_config(folder / "config.json", run_config(config), "run")
    return folder
