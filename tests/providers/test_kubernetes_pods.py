"""Pods: their manifests, what their status means, and settings that make them.

The answers come from the schemas of Kubernetes that lightkube carries, from statuses as kubelets of
1.20 to 1.33 write them.
"""

import dataclasses
import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlboost_jax.providers.base import (
    ANY_POOL,
)
from rlboost_jax.providers.kubernetes import manifests
from rlboost_jax.providers.kubernetes.states import pod_state
from rlboost_jax.settings.config_loading import run_config_from_dict
from rlboost_jax.settings.fleet_config import ChaosConfig, FleetConfig
from rlboost_jax.settings.kubernetes_config import KubernetesConfig, kubernetes_mistakes, pools_of
from tests.docs_blocks import ROOT, blocks_of

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
    return pytest.importorskip(
        "lightkube.resources.core_v1", reason="no lightkube; make test has it"
    )


def test_manifests_keep_to_the_schema_of_kubernetes(resources: Any) -> None:
    """Nothing is lost when they are read into its OpenAPI types and written again."""
    blank = dataclasses.replace(FULL, kubernetes=KubernetesConfig(image="i", gpus=0))
    for manifest in (made(), made(pool="l4"), made(blank)):
        assert resources.Pod.from_dict(manifest).to_dict() == manifest
    secret = manifests.secret(made(), uid="u-1", join="word")
    assert resources.Secret.from_dict(secret).to_dict() == secret


def test_the_files_to_copy_keep_to_the_schema_of_kubernetes(resources: Any) -> None:
    files = [ROOT / "deploy" / "kubernetes" / name for name in ("rlboost.yaml", "trainer.yaml")]
    objects = [
        each for file in files for each in yaml.safe_load_all(file.read_text(encoding="utf-8"))
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


def test_a_misspelt_field_is_against_the_schema(resources: Any) -> None:
    manifest = made()
    manifest["spec"]["activeDeadlineSecond"] = 1
    assert resources.Pod.from_dict(manifest).to_dict() != manifest


def test_a_pod_is_tagged_limited_and_never_started_again() -> None:
    pod = made()
    assert {
        "rlboost/run": "run",
        "rlboost/name": "kubernetes-1",
        "rlboost/nonce": "n-1",
    }.items() <= (pod["metadata"]["labels"].items())
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
def test_spot_nodes_as_their_clouds_mark_them(
    spot: Any, label: dict[str, str], tainted: bool
) -> None:
    """Source: the pages of GKE, EKS, AKS and Karpenter on spot nodes."""
    settings = dataclasses.replace(SETTINGS, spot=spot, tolerations="", gpus=0)
    spec = made(dataclasses.replace(FULL, kubernetes=settings))["spec"]
    assert spec["nodeSelector"] == {"team": "ours", **label}
    found = [(each["key"], each["value"], each["effect"]) for each in spec.get("tolerations", [])]
    assert found == [(*pair, "NoSchedule") for pair in label.items() if tainted]


def test_taints_that_a_pod_bears() -> None:
    found = made()["spec"]["tolerations"]
    assert {
        "key": "dedicated",
        "operator": "Equal",
        "value": "ours",
        "effect": "NoExecute",
    } in found
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


def test_a_dry_run_shows_what_would_be_sent() -> None:
    shown = list(yaml.safe_load_all(manifests.shown(FULL, address="head:1")))
    assert [each["kind"] for each in shown] == ["Pod", "Secret"]
    expected = made()["spec"]
    expected["containers"][0] |= {
        key: shown[0]["spec"]["containers"][0][key] for key in ("args", "env")
    }
    assert shown[0]["spec"] == expected and shown[1]["stringData"] == {"join": "CREDENTIALS"}


def test_names_of_pods_are_those_of_dns_and_one_for_each_tag() -> None:
    tags = [("r", "A.b_c" * 20, "n"), ("r", "a", "n"), ("r", "a", "m"), ("q", "a", "n")]
    names = [manifests.pod_name(*tag) for tag in tags]
    assert len(set(names)) == 4 and names == [manifests.pod_name(*tag) for tag in tags]
    for name in names:
        assert len(name) <= 63 and name == name.lower() and name.replace("-", "").isalnum()


def pod_with(status: dict[str, Any], *, node: str = "node-0", **meta: Any) -> dict[str, Any]:
    pod = made()
    pod["metadata"] |= meta
    return {
        **pod,
        "spec": {**pod["spec"], **({"nodeName": node} if node else {})},
        "status": status,
    }


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    said = {"reason": reason, **({"message": message} if message else {})}
    return {
        "phase": "Pending",
        "containerStatuses": [{"name": "server", "state": {"waiting": said}}],
    }


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
