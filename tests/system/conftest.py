"""Runs that were left alone, which others are compared with. Workers share them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.system.harness import SEED, SHORT, Run


@pytest.fixture(scope="session")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run]:
    """`left_alone("name", *overrides)`: that run, complete. Whichever worker needs it first has it
    made; the others wait for it and read its files."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # whose folder is in that of the session
        folder = folder.parent

    def complete(name: str, *overrides: str) -> Run:
        run = Run(folder / name, *overrides)
        with Path(folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (run.workdir / "summary.json").exists():
                run.run()
        return run

    return complete


@pytest.fixture(scope="session")
def calm(left_alone: Callable[..., Run]) -> Run:
    """Four steps of seconds, with a fleet."""
    return left_alone("calm", SEED)


@pytest.fixture(scope="session")
def short_and_calm(left_alone: Callable[..., Run]) -> Run:
    """A run of the settings `SHORT`, by its trainer's engine only."""
    return left_alone("short_and_calm", *SHORT, "fleet.max_instances=0")
