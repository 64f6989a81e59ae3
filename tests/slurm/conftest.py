"""One cluster for all tests of this folder, in a process of tests."""

from collections.abc import Iterator

import pytest

from tests.slurm.cluster import cluster, missing


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What Slurm's commands need in the environment."""
    if reason := missing():
        pytest.skip(f"no Slurm here: {reason}")
    with cluster(tmp_path_factory.mktemp("slurm") / "cluster") as environment:
        yield environment
