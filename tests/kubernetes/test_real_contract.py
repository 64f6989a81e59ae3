"""The contract of all providers over a real API server; it is among the long tests."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest

from rlboost_jax.providers.base import Provider
from rlboost_jax.providers.kubernetes.kubernetes_api import KubernetesApi
from rlboost_jax.providers.kubernetes.kubernetes_launcher import KubernetesLauncher
from rlboost_jax.providers.polled import PolledProvider
from tests.kubernetes.cluster import Cluster
from tests.kubernetes.test_real import evict
from tests.processes import living
from tests.providers.benches import Bench, KubernetesBench, rendezvous
from tests.providers.real_contract import *  # noqa: F403

pytestmark = [pytest.mark.system, pytest.mark.soak]


class RealBench(KubernetesBench):
    def __init__(self, folder: Path, real: Cluster) -> None:
        super().__init__(folder)
        self.cluster.close()
        self.real = real

    def open(self) -> PolledProvider:
        place = dataclasses.replace(rendezvous(self.folder), run_id=self.folder.name[:60])
        api = KubernetesApi("", "rlboost", timeout_seconds=30.0, kubeconfig=self.real.trainer)
        launcher = KubernetesLauncher(self.fleet, place, api=api)
        return PolledProvider(launcher, place.run_id, poll_seconds=0.3, settle_seconds=0.0)

    async def end(self, provider: Provider, name: str) -> None:
        (pid,) = (
            each.pid
            for each in living()
            if f"--name={name}" in each.command and str(self.folder) in each.command
        )
        os.kill(pid, signal.SIGUSR1)

    async def take(self, provider: Provider, name: str) -> None:
        run = self.folder.name[:60]
        (pod,) = (
            each["metadata"]["name"]
            for each in self.real.items("pods")
            if each["metadata"]["labels"]["rlboost/run"] == run
            and each["metadata"]["labels"]["rlboost/name"] == name
        )
        evict(self.real, pod)


@pytest.fixture
def bench(cluster: Cluster, tmp_path: Path) -> Bench:
    return RealBench(tmp_path, cluster)
