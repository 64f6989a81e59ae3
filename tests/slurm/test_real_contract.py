"""The contract of all providers over a real Slurm; 45 s, so it is among the long tests."""

import dataclasses
import os
import subprocess
from pathlib import Path

import pytest

from rlboost_jax.providers.base import Provider
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.providers.slurm import SlurmLauncher
from tests.providers.benches import Bench, SlurmBench, rendezvous
from tests.providers.real_contract import *  # noqa: F403

pytestmark = [pytest.mark.system, pytest.mark.soak]


class RealBench(SlurmBench):
    def open(self) -> PolledProvider:
        place = dataclasses.replace(rendezvous(self.folder), run_id=self.folder.name)
        launcher = SlurmLauncher(self.fleet, place)
        return PolledProvider(launcher, place.run_id, poll_seconds=0.3, settle_seconds=5.0)

    async def end(self, provider: Provider, name: str) -> None:
        self._scancel(provider, name, "--signal=USR1", "--batch")

    async def take(self, provider: Provider, name: str) -> None:
        self._scancel(provider, name)

    def _scancel(self, provider: Provider, name: str, *options: str) -> None:
        assert isinstance(provider, PolledProvider)
        (job,) = provider._instances[name].jobs
        subprocess.run(["scancel", *options, job.handle], check=True)


@pytest.fixture
def bench(slurm: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    assert os.environ["SLURM_CONF"]
    return RealBench(tmp_path)
