"""On the path of every process of a run under test: its engines go at the pace that a tester sets.

`RLBOOST_TEST_PACE` names a folder. Its file `pace.json` is read after every dispatch:

    {"stretch": s, "hold": {"number": k, "version": v, "dispatches": n, "drafts": b}}

stretch   a dispatch, and a micro-batch of the learner, takes s times as long as it does (s >= 1)
hold      an engine that has finished n dispatches of version v or a later one waits until the
          hold is taken back; without `hold` it never waits. What it is asked meanwhile, such as
          to release responses or to load others, it does at once. With `drafts` it waits after a
          dispatch that had drafts.

Servers that leave have 4 s for their last words, and a lease may be as long as a test likes: this
machine may stand still for longer than a product has to wait for.

An engine that waits for hold k has a file `held/<process id>-<thread id>-<k>` there. Tokens of its
last dispatch but one have been sent by then.
"""

import contextlib
import json
import os
import sys
import threading
import time
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

FOLDER = Path(os.environ.get("RLBOOST_TEST_PACE", ""))
LOOK_SECONDS = 0.002


def pace() -> dict[str, Any]:
    with contextlib.suppress(OSError):  # the test is over
        return json.loads((FOLDER / "pace.json").read_text())
    return {}


def stretch(began: float) -> None:
    """Take longer over what began then."""
    factor = pace().get("stretch", 1.0)
    if factor > 1.0:
        time.sleep((factor - 1.0) * (time.monotonic() - began))


class PacedEngine:
    """An engine between a worker and itself."""

    def __init__(self, engine: Any, asked: Any) -> None:
        """Pace an engine for a worker.

        Args:
            asked: whether the worker has something else for it to do.
        """
        self._engine, self._asked = engine, asked
        self._dispatches = 0  # since the last load
        self._drafts = False  # whether the last dispatch had any
        self._began = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def load(self, params: Any, version: int) -> None:
        self._dispatches = 0
        self._engine.load(params, version)

    def begin(self) -> int:
        self._began = time.monotonic()
        return self._engine.begin()

    def finish(self) -> Any:
        dispatch = self._engine.finish()
        stretch(self._began)
        self._dispatches += 1
        self._drafts = dispatch.drafts is not None
        self._wait()
        self._began = time.monotonic()
        return dispatch

    def _wait(self) -> None:
        marks: set[Path] = set()  # another hold may take the place of one
        while (number := self._held_by()) is not None and not self._asked():
            mark = FOLDER / "held" / f"{os.getpid()}-{threading.get_ident()}-{number}"
            if mark not in marks:
                with contextlib.suppress(OSError):
                    mark.touch()
                marks.add(mark)
            time.sleep(LOOK_SECONDS)
        for mark in marks:
            mark.unlink(missing_ok=True)

    def _held_by(self) -> int | None:
        """Number of the hold that it is to wait for."""
        hold = pace().get("hold")
        version = self._engine.version
        if not hold or version is None:
            return None
        held = version >= hold["version"] and self._dispatches >= hold["dispatches"]
        held &= self._drafts or not hold.get("drafts")
        return hold["number"] if held else None


def pace_worker(module: Any) -> None:
    original = module.EngineWorker.__init__

    def __init__(self: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        original(self, engine, *args, **kwargs)
        self._engine = PacedEngine(engine, lambda: not self._commands.empty())

    module.EngineWorker.__init__ = __init__


def pace_learner(module: Any) -> None:
    original = module.PolicyPrograms.accumulate

    def accumulate(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = time.monotonic()
        result = original(self, *args, **kwargs)
        stretch(began)
        return result

    module.PolicyPrograms.accumulate = accumulate


def let_leave(module: Any) -> None:
    module.LEAVE_SECONDS = 4.0


def let_be_silent(module: Any) -> None:
    module.MAX_LEASE_SECONDS = 3600.0


PACED = {
    "rlboost_jax.sequences.shared_limits": let_be_silent,
    "rlboost_jax.rollout.manager_stream": let_leave,
    "rlboost_jax.rollout.engine_worker": pace_worker,
    "rlboost_jax.learner.programs.policy": pace_learner,
}


class PacedLoader(Loader):
    """Changes a module once it is there."""

    def __init__(self, loader: Loader, change: Any) -> None:
        self._loader, self._change = loader, change

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._loader.exec_module(module)
        self._change(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class PacedModules(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name not in PACED:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = PacedLoader(spec.loader, PACED[name])
        return spec


if "RLBOOST_TEST_DRAFTER" in os.environ:
    import drafting

    PACED |= drafting.CHANGED
if "RLBOOST_TEST_PACE" in os.environ:
    sys.meta_path.insert(0, PacedModules())
if "RLBOOST_TEST_KILLS" in os.environ:
    import killed

    killed.hook(Path(os.environ["RLBOOST_TEST_KILLS"]), os.environ["RLBOOST_TEST_WORKDIR"])
