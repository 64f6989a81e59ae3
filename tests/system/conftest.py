import pytest

from tests.system.harness import SHORT, Run


@pytest.fixture(scope="session")
def short_and_calm(tmp_path_factory) -> Run:
    """A run of the settings `SHORT` that was left alone, by its trainer's engine only."""
    workdir = tmp_path_factory.mktemp("short_and_calm") / "run"
    return Run(workdir, *SHORT, "fleet.max_instances=0").run()
