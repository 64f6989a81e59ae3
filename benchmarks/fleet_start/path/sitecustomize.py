"""On the path of a benchmark's servers: their engine is a clock, and they note when what was done.

The program is `rlboost_jax.rollout` and all else in it is real: imports, credentials, settings,
stream, weights. `RLBOOST_STAGES` names a folder; the file of a server there has a line for each
stage that it has come to the end of: its name, and seconds since the epoch.
"""

import os
import sys
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

SERVER = "rlboost_jax.rollout.server"
STARTED = time.time()


def note(stage: str, moment: float | None = None) -> None:
    name = next((a[7:] for a in CALLED if a.startswith("--name=")), str(os.getpid()))
    with open(Path(os.environ["RLBOOST_STAGES"]) / name, "a") as file:
        file.write(f"{stage} {moment or time.time():.3f}\n")


CALLED: list[str] = []  # with these options


def stand_in(module: Any) -> None:
    """Have this module's servers serve a clock."""
    configured, main = module.fetch_settings, module.main

    def main_noted(argv: list[str], **options: Any) -> int:
        CALLED.extend(argv)
        if "zygote" not in sys.argv[0]:  # else others have waited for that
            note("python", STARTED)
        note("imports")
        return main(argv, **options)

    async def fetch_settings(*args: Any) -> Any:
        found = await configured(*args)
        note("config")
        return found

    def prepared_engine(config: Any, **options: Any) -> Any:
        from benchmarks.fleet_start.engine import engine_of_run

        return engine_of_run(config, note)

    module.main, module.fetch_settings = main_noted, fetch_settings
    module.prepared_engine = prepared_engine


class Changed(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        stand_in(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class Servers(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != SERVER:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = Changed(spec.loader)
        return spec


if "RLBOOST_STAGES" in os.environ:
    sys.meta_path.insert(0, Servers())
