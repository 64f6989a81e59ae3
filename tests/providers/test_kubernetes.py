"""Pods: their manifests, what their status means, and what a cluster may do to them.

The answers come from the schemas of Kubernetes that lightkube carries, from statuses as kubelets of
1.20 to 1.33 write them, and from a fake API server; tests/kubernetes has a real one.
"""

import asyncio
import contextlib
import dataclasses
import importlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlboost_jax.credentials import packed
from rlboost_jax.providers.base import (
    ANY_POOL,
    Exited,
    Granted,
    Refused,
    Started,
    Withdrawn,
)
from rlboost_jax.providers.kubernetes import manifests
from rlboost_jax.providers.kubernetes.api import KubernetesApi
from rlboost_jax.providers.kubernetes.launcher import KubernetesLauncher
from rlboost_jax.providers.kubernetes.states import pod_state
from rlboost_jax.providers.launcher import LaunchFailed
from rlboost_jax.providers.polled import PolledProvider
from rlboost_jax.settings.fleet import ChaosConfig, FleetConfig
from rlboost_jax.settings.kubernetes import KubernetesConfig, kubernetes_mistakes, pools_of
from rlboost_jax.settings.load import run_config_from_dict
from tests.docs_blocks import blocks_of
from tests.providers.benches import CODE, SECRET, KubernetesBench, rendezvous
from tests.providers.test_contract import Ear, play

PAGE = "docs/how-to/fleet-kubernetes.md"
SETTINGS = KubernetesConfig(
    image="registry/rlboost@sha256:0",
    pools="l4: kind=l4, size=big; t4: kind=t4",
    node_labels="team=ours",
    spot="gke",
    tolerations="dedicated=ours:NoExecute, odd",
    gpus=2,
    resources="cpu=8, memory=64Gi",
    queue="spot",
    priority_class="low",
    pull_secret="registry",
    environment="XLA_FLAGS='--a=b --c' EMPTY=",
    minutes=90,
)
FULL = FleetConfig(
    provider="kubernetes",
    chaos=ChaosConfig(),
    kubernetes=SETTINGS,
    notice_seconds=29.5,
    price_per_hour=1.5,
)


def made(fleet: FleetConfig = FULL, pool: str = ANY_POOL) -> dict[str, Any]:
    """The manifest of a pod."""
    tag = {"run": "run", "name": "kubernetes-1", "nonce": "n-1"}
    return manifests.pod(fleet, **tag, pool=pool, address="head:1")


def of(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["spec"]["containers"]
    return dict(container)


@pytest.fixture
def resources() -> Any:
    return pytest.importorskip("lightkube.resources.core_v1", reason="no lightkube; make test has it")


def test_manifests_keep_to_the_schema_of_kubernetes(resources: Any) -> None:
    """Of its OpenAPI document: read into its types and written again, nothing is lost."""
    blank = dataclasses.replace(FULL, kubernetes=KubernetesConfig(image="i", gpus=0))
    for manifest in (made(), made(pool="l4"), made(blank)):
        assert resources.Pod.from_dict(manifest).to_dict() == manifest
    secret = manifests.secret(made(), uid="u-1", join="word")
    assert resources.Secret.from_dict(secret).to_dict() == secret


def test_the_files_to_copy_keep_to_the_schema_of_kubernetes(resources: Any) -> None:
    saved = {block.saved_as: block for block in blocks_of(PAGE) if block.saved_as}
    assert saved.keys() == {"rlboost.yaml", "on_kubernetes.py", "trainer.yaml"}
    objects = [
        each
        for name in ("rlboost.yaml", "trainer.yaml")
        for each in yaml.safe_load_all(saved[name].text)
    ]
    kinds = Counter(each["kind"] for each in objects)
    assert kinds["Job"] == kinds["Service"] == kinds["Role"] == 1 and len(objects) == 7
    for each in objects:
        group = each["apiVersion"].replace("/", "_") if "/" in each["apiVersion"] else "core_v1"
        module = group.replace(".k8s.io", "").replace(".", "_")
        kind = getattr(importlib.import_module(f"lightkube.resources.{module}"), each["kind"])
        assert kind.from_dict(each).to_dict() == each, each["kind"]


def test_the_configuration_to_copy_passes_all_checks() -> None:
    (block,) = (b for b in blocks_of(PAGE) if b.saved_as == "on_kubernetes.py")
    names: dict[str, Any] = {}
    exec(block.text, names)
    run = run_config_from_dict(names["get_config"]().to_dict())
    assert run.fleet.provider == "kubernetes" and len(pools_of(run.fleet.kubernetes.pools)) == 2


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
        (block,) = (b for b in blocks_of(PAGE) if b.saved_as == "rlboost.yaml")
        (role,) = (each for each in yaml.safe_load_all(block.text) if each["kind"] == "Role")
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


def test_a_misspelt_field_is_against_the_schema(resources: Any) -> None:
    manifest = made()
    manifest["spec"]["activeDeadlineSecond"] = 1
    assert resources.Pod.from_dict(manifest).to_dict() != manifest


def test_a_pod_is_tagged_limited_and_never_started_again() -> None:
    pod = made()
    assert {"rlboost/run": "run", "rlboost/name": "kubernetes-1", "rlboost/nonce": "n-1"}.items() <= (
        pod["metadata"]["labels"].items()
    )
    assert pod["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "spot"
    spec = pod["spec"]
    assert spec["restartPolicy"] == "Never" and spec["activeDeadlineSeconds"] == 90 * 60
    assert spec["terminationGracePeriodSeconds"] == 30 and spec["priorityClassName"] == "low"
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    assert of(pod)["resources"] == {
        "requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "2"},
    }
    assert {"--manager=head:1", "--name=kubernetes-1", "--price=1.5"} <= set(of(pod)["args"])


def test_a_pod_keeps_to_the_restricted_standard() -> None:
    """As the Pod Security Standards list it."""
    pod = made()
    whole, one = pod["spec"]["securityContext"], of(pod)["securityContext"]
    assert whole["runAsNonRoot"] and whole["runAsUser"] > 0
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert one == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "volumes"} & pod["spec"].keys()


def test_any_pool_is_a_node_of_one_of_them() -> None:
    def terms(pool: str) -> list[dict[str, list[str]]]:
        affinity = made(pool=pool)["spec"]["affinity"]["nodeAffinity"]
        found = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert {e["operator"] for term in found for e in term["matchExpressions"]} == {"In"}
        return [{e["key"]: e["values"] for e in term["matchExpressions"]} for term in found]

    l4, t4 = {"kind": ["l4"], "size": ["big"]}, {"kind": ["t4"]}
    assert terms(ANY_POOL) == [l4, t4] and terms("l4") == [l4] and terms("t4") == [t4]
    without = dataclasses.replace(FULL, kubernetes=dataclasses.replace(SETTINGS, pools=""))
    assert "affinity" not in made(without)["spec"]


@pytest.mark.parametrize(
    ("spot", "label", "tainted"),
    [
        ("gke", {"cloud.google.com/gke-spot": "true"}, True),
        ("eks", {"eks.amazonaws.com/capacityType": "SPOT"}, False),
        ("aks", {"kubernetes.azure.com/scalesetpriority": "spot"}, True),
        ("karpenter", {"karpenter.sh/capacity-type": "spot"}, False),
        ("none", {}, False),
    ],
)
def test_spot_nodes_as_their_clouds_mark_them(spot: Any, label: dict[str, str], tainted: bool) -> None:
    """Source: the pages of GKE, EKS, AKS and Karpenter on spot nodes."""
    settings = dataclasses.replace(SETTINGS, spot=spot, tolerations="", gpus=0)
    spec = made(dataclasses.replace(FULL, kubernetes=settings))["spec"]
    assert spec["nodeSelector"] == {"team": "ours", **label}
    found = [(each["key"], each["value"], each["effect"]) for each in spec.get("tolerations", [])]
    assert found == [(*pair, "NoSchedule") for pair in label.items() if tainted]


def test_taints_that_a_pod_bears() -> None:
    found = made()["spec"]["tolerations"]
    assert {"key": "dedicated", "operator": "Equal", "value": "ours", "effect": "NoExecute"} in found
    assert {"key": "odd", "operator": "Exists"} in found
    assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in found


def test_credentials_are_in_the_secret_and_nowhere_else(tmp_path: Path) -> None:
    pod = made()
    values = {each["name"]: each.get("value") for each in of(pod)["env"]}
    assert values == {
        "RLBOOST_NONCE": "n-1",
        "RLBOOST_JOIN": None,
        "XLA_FLAGS": "--a=b --c",
        "EMPTY": "",
    }
    secret = manifests.secret(pod, uid="u-1", join="word")
    (join,) = (each for each in of(pod)["env"] if each["name"] == "RLBOOST_JOIN")
    reference = join["valueFrom"]["secretKeyRef"]
    assert reference["name"] == secret["metadata"]["name"] == pod["metadata"]["name"]
    assert secret["stringData"] == {reference["key"]: "word"}
    (owner,) = secret["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Pod", pod["metadata"]["name"], "u-1")


def test_names_of_pods_are_those_of_dns_and_one_for_each_tag() -> None:
    tags = [("r", "A.b_c" * 20, "n"), ("r", "a", "n"), ("r", "a", "m"), ("q", "a", "n")]
    names = [manifests.pod_name(*tag) for tag in tags]
    assert len(set(names)) == 4 and names == [manifests.pod_name(*tag) for tag in tags]
    for name in names:
        assert len(name) <= 63 and name == name.lower() and name.replace("-", "").isalnum()


def pod_with(status: dict[str, Any], *, node: str = "node-0", **meta: Any) -> dict[str, Any]:
    pod = made()
    pod["metadata"] |= meta
    return {**pod, "spec": {**pod["spec"], **({"nodeName": node} if node else {})}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    said = {"reason": reason, **({"message": message} if message else {})}
    return {"phase": "Pending", "containerStatuses": [{"name": "server", "state": {"waiting": said}}]}


def ended(phase: str, **terminated: Any) -> dict[str, Any]:
    container = {"name": "server", "state": {"terminated": terminated}}
    return {"phase": phase, "containerStatuses": [container]}


UNSCHEDULABLE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/3 nodes are available:\n3 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("status", "node", "expected"),
    [
        ({}, "", {"state": "waiting", "unplaced": True}),
        (
            {"phase": "Pending", "conditions": [UNSCHEDULABLE]},
            "",
            {
                "state": "waiting",
                "unplaced": True,
                "reason": "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
            },
        ),
        (waiting("ContainerCreating"), "n", {"state": "waiting", "reason": "ContainerCreating"}),
        (
            waiting("ImagePullBackOff", "Back-off"),
            "n",
            {"state": "waiting", "failing": True, "reason": "ImagePullBackOff: Back-off"},
        ),
        (waiting("CreateContainerConfigError"), "n", {"state": "waiting", "failing": True}),
        ({"phase": "Running"}, "n", {"state": "running"}),
        ({"phase": "Unknown"}, "n", {"state": "running"}),  # its node does not answer
        (ended("Succeeded", exitCode=0, reason="Completed"), "n", {"state": "over", "code": 0}),
        (
            ended("Failed", exitCode=2, reason="Error"),
            "n",
            {"state": "over", "code": 2, "reason": "Error"},
        ),
        (
            ended("Failed", exitCode=137, reason="OOMKilled"),
            "n",
            {"state": "over", "code": None, "reason": "OOMKilled"},
        ),
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            "n",
            {"state": "over", "reason": "Evicted: The node was low on memory."},
        ),
        (
            {"phase": "Failed", "reason": "DeadlineExceeded"},
            "n",
            {"state": "over", "reason": "DeadlineExceeded"},
        ),
    ],
)
def test_a_status(status: dict[str, Any], node: str, expected: dict[str, Any]) -> None:
    found = pod_state(pod_with(status, node=node))
    assert found is not None and found.tag == ("run", "kubernetes-1", "n-1")
    got = dataclasses.asdict(found)
    assert {key: got[key] for key in expected} == expected
    assert found.failing == expected.get("failing", False)
    assert found.unplaced == expected.get("unplaced", False)


def test_who_is_asked_to_go_and_why() -> None:
    running = {"phase": "Running"}
    assert pod_state(pod_with(running)).leaves_in is None  # type: ignore[union-attr]
    going = {"deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30}
    deleted = pod_state(pod_with(running, **going))
    assert deleted is not None and (deleted.leaves_in, deleted.withdrawn) == (30, "")
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
    }
    disrupted = pod_state(pod_with({**running, "conditions": [condition]}))
    assert disrupted is not None and disrupted.leaves_in == 0
    assert disrupted.withdrawn.startswith("DeletionByTaintManager: Taint manager")


def test_a_pod_of_somebody_else_is_none_of_ours() -> None:
    assert pod_state({"metadata": {"name": "web", "labels": {"app": "web"}}, "status": {}}) is None
    assert pod_state({"metadata": {"name": "web"}}) is None


@pytest.mark.parametrize(
    ("changed", "line"),
    [
        ({"image": ""}, "fleet.kubernetes.image is ''; name an image"),
        ({"pools": "l4 kind=l4"}, "'l4 kind=l4' is no pool; write NAME: KEY=VALUE"),
        ({"pools": "a: x=1; a: x=2"}, "a pool 'a' there is already"),
        ({"pools": "any: x=1"}, "a pool 'any' there is already"),
        ({"pools": "a:"}, "pool 'a' has no label"),
        ({"node_labels": "x"}, "'x' is no label; write KEY=VALUE"),
        ({"node_labels": "x=1, x=2"}, "x is there twice"),
        ({"tolerations": "x:NoSchedul"}, "did you mean 'NoSchedule'?"),
        ({"tolerations": "=x"}, "is no taint"),
        ({"resources": "memory=64 GB"}, "'memory=64 GB' is no label"),
        ({"resources": "memory=64GB"}, "'64GB' is no quantity of memory"),
        ({"environment": "1X=2"}, "'1X=2' is no variable"),
        ({"environment": "RLBOOST_JOIN=x"}, "RLBOOST_JOIN is the run's own"),
        ({"environment": "X='"}, "No closing quotation"),
        ({"program": " "}, "name the server"),
        ({"namespace": ""}, "fleet.kubernetes.namespace is '', which is no name"),
        ({"queue": "Spot"}, "fleet.kubernetes.queue is 'Spot', which is no name"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_setting(changed: dict[str, str], line: str) -> None:
    settings = dataclasses.replace(SETTINGS, **changed)  # type: ignore[arg-type]
    (mistake,) = kubernetes_mistakes(settings, notice_signal="SIGTERM", notice_seconds=0.0)
    (name,) = changed
    assert mistake.startswith(f"fleet.kubernetes.{name} is ") and line in mistake


def test_a_pod_hears_one_signal_only() -> None:
    given = {"notice_signal": "SIGUSR1", "notice_seconds": 30.0}
    (mistake,) = kubernetes_mistakes(SETTINGS, **given)  # type: ignore[arg-type]
    assert mistake.startswith("fleet.notice_signal is 'SIGUSR1'")
    for fine in ({"notice_seconds": 0.0}, {"notice_signal": "SIGTERM"}):
        assert not list(kubernetes_mistakes(SETTINGS, **{**given, **fine}))  # type: ignore[arg-type]


# A cluster that makes difficulties


class Bench(KubernetesBench):
    """With settings of a test's own, and times that a test can wait for."""

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
        return PolledProvider(self.launcher(), "run", poll_seconds=0.1, settle_seconds=0.0)


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


def test_a_secret_lives_as_long_as_its_pod(tmp_path: Path) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Granted)
            (secret,) = bench.cluster.secrets.values()
            (pod,) = bench.cluster.pods.values()
            assert SECRET not in json.dumps(pod) and packed(tmp_path / "join") not in json.dumps(pod)
            assert secret["immutable"]
            await provider.terminate("a", 0.0)
            await ear.of("a", Exited)
            assert not bench.cluster.secrets

    play(story)


def test_a_start_that_is_sent_twice_makes_one_pod(tmp_path: Path) -> None:
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
            lists = lambda: bench.cluster.seen.count("GET pods")  # noqa: E731
            while lists() < 8:
                await asyncio.sleep(0.01)
            assert not ear.heard
            bench.cluster.full = False
            await ear.of("a", Granted)

    play(story)


def test_an_eviction_is_heard_of_once_and_is_the_reason_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifests, "LEAVE_SECONDS", 1)

    async def story() -> None:
        bench = Bench(tmp_path)
        async with opened(bench) as (provider, ear):
            await bench.nonce(provider, "stubborn")
            await provider.request("stubborn", "n", ANY_POOL)
            await ear.of("stubborn", Started)
            await bench.nonce(provider, "stubborn")  # it heeds no SIGTERM now
            bench.cluster.evict("stubborn", reason="PreemptionByScheduler", message="for urgent-0")
            withdrawn = await ear.of("stubborn", Withdrawn)
            assert isinstance(withdrawn, Withdrawn) and withdrawn.seconds == pytest.approx(0.9)
            assert withdrawn.reason == "PreemptionByScheduler: for urgent-0"
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
            await provider.terminate("stubborn", 1.0)
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
        bench.timeout_seconds = 0.3
        async with opened(bench) as (provider, ear):
            bench.timeout_seconds = 20.0
            await provider.request("a", "n", ANY_POOL)
            await ear.of("a", Started)
            bench.cluster.away.set()
            while not provider._problem:
                await asyncio.sleep(0.01)
            assert provider._problem == "cannot list pods: no answer of the API server in 0.3 s"
            await provider.request("b", "n-b", ANY_POOL)
            refused = await ear.of("b", Refused)
            assert isinstance(refused, Refused) and "no answer of the API server" in refused.reason
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
        bench.timeout_seconds = 0.5
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


def test_no_cluster_and_no_credentials_are_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        bench = Bench(tmp_path)
        bench.cluster.close()
        (tmp_path / "join" / "token").unlink()
        with pytest.raises(LaunchFailed, match="cannot read .*join: No such file") as error:
            await bench.launcher().start("a", "n", ANY_POOL)
        assert error.value.sure
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
        with pytest.raises(LaunchFailed, match="no cluster to ask: .*nowhere not found") as error:
            await KubernetesApi("", "rlboost", timeout_seconds=1.0).pods()
        assert error.value.sure
        with pytest.raises(LaunchFailed, match="cannot list pods: "):
            await bench.launcher().list()  # nobody listens there any more

    play(story)


