"""Runs that were left alone, which others are compared with."""

import pytest

from tests.system.harness import SEED, SHORT, Run


@pytest.fixture(scope="session")
def calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Four steps of seconds, with a fleet."""
    return left_alone(tmp_path_factory, SEED)


@pytest.fixture(scope="session")
def short_and_calm(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of the settings `SHORT`, by its trainer's engine only."""
    return left_alone(tmp_path_factory, *SHORT, "fleet.max_instances=0")


def left_alone(tmp_path_factory: pytest.TempPathFactory, *overrides: str) -> Run:
    run = Run(tmp_path_factory.mktemp("calm"), *overrides)
    run.run()
    return run
