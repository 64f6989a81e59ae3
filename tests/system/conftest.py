"""Runs that were left alone, which others are compared with. Nobody writes into them."""

from pathlib import Path

import pytest

from tests.shared import made_once
from tests.system.harness import SEED, SHORT, Run, complete


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps of seconds, with a fleet."""
    return left_alone(tmp_path_factory, "calm", SEED)


@pytest.fixture(scope="session")
def short_and_calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the settings `SHORT`, by its trainer's engine only."""
    return left_alone(tmp_path_factory, "short_and_calm", *SHORT, "fleet.max_instances=0")


def left_alone(tmp_path_factory: pytest.TempPathFactory, name: str, *overrides: str) -> Run:
    def make(folder: Path) -> None:
        complete(folder / "run", *overrides)

    return Run(made_once(tmp_path_factory, name, make) / "run", *overrides)
