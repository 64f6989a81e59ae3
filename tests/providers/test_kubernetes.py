"""What a cluster may do to pods, and what the launcher makes of it.

The API server is a fake; tests/kubernetes has a real one.
"""

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.kubernetes import manifests
from rlboost_jax.providers.kubernetes.kubernetes_api import KubernetesApi
from rlboost_jax.providers.kubernetes.kubernetes_launcher import KubernetesLauncher
from rlboost_jax.providers.launcher import LaunchFailed
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.trust.credentials import packed
from tests.docs_blocks import ROOT
from tests.patience import PATIENCE_SECONDS
from tests.providers.benches import CODE, SECRET, KubernetesBench, polled, rendezvous
from tests.providers.test_contract import Ear, play

MANIFEST = ROOT / "deploy" / "kubernetes" / "rlboost.yaml"


class Bench(KubernetesBench):
    """Bench with a test's own settings, and times that a test can wait for."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        super().__init__(folder)
        self._settings, self.timeout_seconds = settings, 20.0

    @property
    def fleet(self) -> FleetConfig:
        settings = {"poll_seconds": 0.1, **self._settings}
        kubernetes = dataclasses.replace(super().fleet.kubernetes, **settings)
        return dataclasses.replace(super().fleet, kubernetes=kubernetes)

    def launcher(self) -> KubernetesLauncher:
        access = self.cluster.kubeconfig
        api = KubernetesApi("", "rlboost", timeout_seconds=self.timeout_seconds, kubeconfig=access)
        return KubernetesLauncher(self.fleet, rendezvous(self.folder), api=api)

    def open(self) -> PolledProvider:
        return polled(self.launcher(), settle_seconds=0.0)


@contextlib.asynccontextmanager
async def opened(bench: Bench) -> AsyncIterator[tuple[PolledProvider, Ear]]:
    """A provider, which is closed at the end; then nothing is left in the cluster."""
    provider = bench.open()
    ear = Ear(provider)
    yield provider, ear
    await provider.close()
    await ear.whole()
    assert not bench.cluster.pods and not bench.cluster.secrets
    bench.cluster.close()


async def listed(bench: Bench, times: int) -> None:
    """Until the pods were listed so often from now on."""
    seen = bench.cluster.seen
    last = seen.count("GET pods") + times
    while seen.count("GET pods") < last:
        await asyncio.sleep(0.01)


def test_a_secret_lives_as_long_as_its_pod(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Granted)
            (secret,) = bench.cluster.secrets.values()
            (pod,) = bench.cluster.pods.values()
            assert SECRET not in json.dumps(pod) and packed(tmp_path / "join") not in json.dumps(
                pod
            )
            assert secret["immutable"]
            await provider.terminate("a", 0.0)
            await ear.of("a", Exited)
            assert not bench.cluster.secrets

    play(story)


def test_a_start_that_is_sent_twice_makes_one_pod(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # a cluster on this host is behind none

    async def story() -> None:
        bench = Bench(tmp_path)
        launcher = bench.launcher()
        for _ in range(2):
            await launcher.start("a", "n", ANY_POOL)
        (job,) = await launcher.list()
        assert job.name == "a" and len(bench.cluster.secrets) == 1
        await launcher.stop(job, 0.0)
        bench.cluster.close()

    play(story)


def test_without_its_secret_no_pod_stays(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        create = bench.cluster._create_secret
        bench.cluster._create_secret = lambda body: (403, "secrets is forbidden")  # type: ignore[method-assign]
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            refused = await ear.of("a", Refused)
            assert isinstance(refused, Refused)
            assert refused.reason == "cannot create a pod: 403: secrets is forbidden"
            assert not bench.cluster.pods
            bench.cluster._create_secret = create  # type: ignore[method-assign]

    play(story)


def test_a_quota_is_a_refusal(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.cluster.quota = 1
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n-a", ANY_POOL)
            await ear.of("a", Granted)
            await provider.request("b", "n-b", ANY_POOL)
            refused = await ear.of("b", Refused)
            assert isinstance(refused, Refused) and "403: " in refused.reason
            assert refused.reason.endswith("exceeded quota: spot, limited: 1")

    play(story)


def test_an_image_that_is_not_there_is_a_refusal_after_a_while(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, pull_seconds=0.3)
        bench.cluster.no_image = True
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            refused = await ear.of("a", Refused)
            assert isinstance(refused, Refused)
            expected = "cannot begin for 0.3 s: ErrImagePull: registry: manifest unknown"
            assert refused.reason == expected

    play(story)


@pytest.mark.parametrize("pending_seconds", [0.3, 0.0])
def test_a_pod_waits_for_a_node_for_so_long(tmp_path: Path, pending_seconds: float) -> None:
    """0: for ever, here until there is one."""

    async def story() -> None:
        bench = Bench(tmp_path, pending_seconds=pending_seconds)
        bench.cluster.full = True
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            if pending_seconds:
                refused = await ear.of("a", Refused)
                assert isinstance(refused, Refused) and "has no node for 0.3 s" in refused.reason
                assert "3 Insufficient nvidia.com/gpu" in refused.reason
                return
            await listed(bench, 8)
            assert not ear.heard
            bench.cluster.full = False
            await ear.of("a", Granted)

    play(story)


def test_an_eviction_is_heard_of_once_and_is_the_reason_of_the_end(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.cluster.second = PATIENCE_SECONDS  # this test does it
        async with opened(bench) as (provider, ear):
            await bench.nonce(provider, "stubborn")
            await provider.request("stubborn", "n", ANY_POOL)
            await ear.of("stubborn", Started)
            await bench.nonce(provider, "stubborn")  # it heeds no SIGTERM now
            bench.cluster.evict("stubborn", reason="PreemptionByScheduler", message="for urgent-0")
            withdrawn = await ear.of("stubborn", Withdrawn)
            left = manifests.LEAVE_SECONDS - 0.1  # a list may be as old as that
            assert isinstance(withdrawn, Withdrawn) and withdrawn.seconds == pytest.approx(left)
            assert withdrawn.reason == "PreemptionByScheduler: for urgent-0"
            await listed(bench, 3)
            bench.cluster.process("stubborn").kill()
            exited = await ear.of("stubborn", Exited)
            assert isinstance(exited, Exited) and exited.reason == withdrawn.reason

    play(story)


def test_what_the_run_ends_itself_nobody_withdraws(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await bench.nonce(provider, "stubborn")
            await provider.request("stubborn", "n", ANY_POOL)
            await ear.of("stubborn", Started)
            await bench.nonce(provider, "stubborn")
            bench.cluster.second = PATIENCE_SECONDS  # this test does it
            await provider.terminate("stubborn", 60.0)
            await listed(bench, 3)
            bench.cluster.process("stubborn").kill()
            await ear.of("stubborn", Exited)
            assert not [event for event in ear.heard if isinstance(event, Withdrawn)]

    play(story)


def test_a_server_that_ends_leaves_its_last_line_its_log_and_no_pod(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, program="sh -c 'echo first; echo no answer from head:1; exit 7'")
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            ended = await ear.of("a", Exited)
            assert isinstance(ended, Exited) and ended.code == CODE
            assert ended.reason == "exit code 7: Error; no answer from head:1"
            log = (tmp_path / "logs" / "a.log").read_text()
            assert log == "first\nno answer from head:1\n"
            while bench.cluster.pods:  # gone before the run is over
                await asyncio.sleep(0.01)

    play(story)


def test_a_node_that_is_gone_takes_the_log_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Started)
            bench.cluster.fail("a", reason="NodeShutdown", message="Node is shutting down")
            ended = await ear.of("a", Exited)
            assert isinstance(ended, Exited)
            assert ended.reason == "NodeShutdown: Node is shutting down"

    play(story)


def test_who_cannot_be_listed_has_not_ended(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Started)
            limits = vars(provider._launcher._api)
            bench.cluster.away.set()
            limits["_timeout_seconds"] = 0.3  # for an answer that does not come
            while not provider._problem:
                await asyncio.sleep(0.01)
            assert provider._problem == "cannot list pods: no answer of the API server in 0.3 s"
            await provider.request("b", "n-b", ANY_POOL)
            refused = await ear.of("b", Refused)
            assert isinstance(refused, Refused) and "no answer of the API server" in refused.reason
            limits["_timeout_seconds"] = bench.timeout_seconds
            bench.cluster.away.clear()
            while provider._problem:
                await asyncio.sleep(0.01)
            assert not [event for event in ear.heard if isinstance(event, Exited | Withdrawn)]

    play(story)


@pytest.mark.parametrize("code", [429, 503])
def test_one_that_has_too_much_to_do_is_asked_again(tmp_path: Path, code: int) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            bench.cluster.answers = [(code, {"Retry-After": "0"}), (code, {})]
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Granted)
            assert bench.cluster.seen[:4] == ["POST pods", "POST pods", "POST pods", "POST secrets"]

    play(story)


def test_asking_again_has_an_end(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.timeout_seconds = 3.0
        launcher = bench.launcher()
        bench.cluster.answers = [(429, {"Retry-After": "3600"})]
        with pytest.raises(LaunchFailed) as error:
            await launcher.start("a", "n", ANY_POOL)
        assert str(error.value) == "cannot create a pod: 429: as the test says" and error.value.sure
        assert bench.cluster.seen == ["POST pods"]
        bench.cluster.close()

    play(story)


def test_of_another_runs_pods_nothing_is_read_or_removed(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path, program="sh -c 'exit 3'")
        theirs = bench.launcher()
        theirs._rendezvous = dataclasses.replace(rendezvous(tmp_path), run_id="theirs")
        await theirs.start("x", "n", ANY_POOL)
        while (await theirs.list())[0].state != "over":
            await asyncio.sleep(0.01)
        provider = bench.open()
        assert await provider.list() == ()
        (job,) = await bench.launcher().list()
        assert (job.run, job.state, job.remains) == ("theirs", "over", False)
        assert len(bench.cluster.pods) == 1
        await provider.close()
        bench.cluster.close()

    play(story)


FAR = """\
apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
"""


def test_no_cluster_and_no_credentials_are_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.cluster.close()
        (tmp_path / "join" / "token").unlink()
        with pytest.raises(LaunchFailed, match=r"cannot read .*join: No such file") as error:
            await bench.launcher().start("a", "n", ANY_POOL)
        assert error.value.sure
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
        with pytest.raises(LaunchFailed, match=r"no cluster to ask: .*nowhere not found") as error:
            await KubernetesApi("", "rlboost", timeout_seconds=1.0).pods()
        assert error.value.sure
        with pytest.raises(LaunchFailed, match="cannot list pods: "):
            await bench.launcher().list()  # nobody listens there any more
        (tmp_path / "far").write_text(FAR)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "far"))
        monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:9")
        with pytest.raises(LaunchFailed, match=r"no cluster to ask: .*SOCKS proxy") as error:
            await KubernetesApi("", "rlboost", timeout_seconds=1.0).pods()
        assert error.value.sure

    play(story)


def test_the_role_to_copy_has_what_is_called_and_no_more(tmp_path: Path) -> None:
    """What a provider has called while pods came, ended and were deleted."""

    async def story() -> None:
        bench = Bench(tmp_path, program="sh -c 'echo over'")
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Exited)
        launcher = bench.launcher()
        assert launcher.pools == ()
        called = {re.sub(r"pods/[^/]+", "pods", each) for each in bench.cluster.seen}
        words = {"POST": "create", "GET": "list", "DELETE": "delete"}
        wanted = {(words[each.split()[0]], each.split()[1]) for each in called} - {
            ("list", "pods/log")
        }
        objects = yaml.safe_load_all(MANIFEST.read_text(encoding="utf-8"))
        (role,) = (each for each in objects if each["kind"] == "Role")
        given = {
            (verb, kind)
            for rule in role["rules"]
            for kind in rule["resources"]
            for verb in rule["verbs"]
        }
        # A pod is read where a start was sent twice; a log is got; a Job is the trainer's.
        assert given - wanted == {("get", "pods"), ("get", "pods/log"), ("get", "jobs")}
        assert wanted <= given

    play(story)
