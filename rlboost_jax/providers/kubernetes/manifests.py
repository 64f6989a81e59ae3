"""Manifests of a server's pod and of the Secret with its credentials.

The Secret is owned by its pod, so that whatever ends the pod, the cluster removes it as well. Both
keep to the restricted Pod Security Standard. No manifest has a credential in it: the pod names the
Secret, and the Secret's content is filled in as it is sent.
"""

import hashlib
import importlib
import math
import re
import shlex
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.providers.base import ANY_POOL, NONCE_VARIABLE
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.kubernetes_config import (
    KubernetesConfig,
    Spot,
    labels_of,
    pools_of,
    quantities_of,
    tolerations_of,
    variables_of,
)
from rlboost_jax.trust.credentials import JOIN_VARIABLE

Manifest = dict[str, Any]

# The tag: labels, by which pods are listed.
RUN, NAME, NONCE = "rlboost/run", "rlboost/name", "rlboost/nonce"
QUEUE: Final = "kueue.x-k8s.io/queue-name"
CONTAINER: Final = "server"
JOIN_KEY: Final = "join"  # of the Secret's data
GPU: Final = "nvidia.com/gpu"
LEAVE_SECONDS: Final = 5  # from SIGTERM to the end, of a server that leaves at once
# Label of spot nodes, and whether they have a taint of the same key and value.
SPOT: Final[Mapping[Spot, tuple[str, str, bool]]] = {
    "gke": ("cloud.google.com/gke-spot", "true", True),
    "eks": ("eks.amazonaws.com/capacityType", "SPOT", False),
    "aks": ("kubernetes.azure.com/scalesetpriority", "spot", True),
    "karpenter": ("karpenter.sh/capacity-type", "spot", False),
}


def pod_name(run: str, name: str, nonce: str) -> str:
    """Name of a pod, the same for the same tag: a start that is sent twice makes one pod."""
    digest = hashlib.sha256(f"{run}/{name}/{nonce}".encode()).hexdigest()[:10]
    readable = re.sub(r"[^a-z0-9]+", "-", name.lower())[:40].strip("-")
    return f"rlboost-{readable}-{digest}"


def pod(
    fleet: FleetConfig, *, run: str, name: str, nonce: str, pool: str, address: str
) -> Manifest:
    """Manifest of one server's pod.

    Args:
        address: HOST:PORT of the manager.

    Raises:
        ValueError, KeyError: of settings that were not validated.
    """
    kubernetes, called = fleet.kubernetes, pod_name(run, name, nonce)
    labels = {RUN: run, NAME: name, NONCE: nonce, "app.kubernetes.io/name": "rlboost"}
    if kubernetes.queue:
        labels[QUEUE] = kubernetes.queue
    spec: Manifest = {
        # A server that ended is over: the manager asks for another one under another name.
        "restartPolicy": "Never",
        "activeDeadlineSeconds": 60 * kubernetes.minutes,
        "terminationGracePeriodSeconds": max(LEAVE_SECONDS, math.ceil(fleet.notice_seconds)),
        "serviceAccountName": kubernetes.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": kubernetes.user,
            "runAsGroup": kubernetes.user,
            "fsGroup": kubernetes.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **_place(kubernetes, pool),
        "containers": [
            _container(fleet, name=name, nonce=nonce, pool=pool, address=address, secret=called)
        ],
    }
    if kubernetes.priority_class:
        spec["priorityClassName"] = kubernetes.priority_class
    if kubernetes.pull_secret:
        spec["imagePullSecrets"] = [{"name": kubernetes.pull_secret}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": called, "namespace": kubernetes.namespace, "labels": labels},
        "spec": spec,
    }


def secret(of_pod: Manifest, *, uid: str, join: str) -> Manifest:
    """Manifest of the Secret with the credentials of an existing pod.

    Args:
        uid: of the pod.
        join: the credentials, packed.
    """
    meta = of_pod["metadata"]
    owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "name": meta["name"],
            "namespace": meta["namespace"],
            "labels": {RUN: meta["labels"][RUN], "app.kubernetes.io/name": "rlboost"},
            "ownerReferences": [owner],
        },
        "type": "Opaque",
        "immutable": True,
        "stringData": {JOIN_KEY: join},
    }


def shown(fleet: FleetConfig, *, address: str) -> str:
    """Manifests of a server as `--dry_run` shows them, in YAML; no run, and no credentials."""
    yaml = importlib.import_module("yaml")  # lightkube has it
    made = pod(fleet, run="RUN", name="NAME", nonce="NONCE", pool=ANY_POOL, address=address)
    both = [made, secret(made, uid="UID", join="CREDENTIALS")]
    text: str = yaml.safe_dump_all(both, sort_keys=False)
    return text


def _container(
    fleet: FleetConfig, *, name: str, nonce: str, pool: str, address: str, secret: str
) -> Manifest:
    kubernetes = fleet.kubernetes
    join = {"secretKeyRef": {"name": secret, "key": JOIN_KEY}}
    more = variables_of(kubernetes.environment)
    resources = quantities_of(kubernetes.resources)
    gpus = {GPU: str(kubernetes.gpus)} if kubernetes.gpus else {}
    limits = {key: value for key, value in resources.items() if key != "cpu"}
    return {
        "name": CONTAINER,
        "image": kubernetes.image,
        "imagePullPolicy": kubernetes.pull_policy,
        "command": shlex.split(kubernetes.program),
        "args": [
            f"--manager={address}",
            f"--name={name}",
            f"--price={fleet.price_per_hour:g}",
            f"--zone={'kubernetes' if pool == ANY_POOL else pool}",
        ],
        "env": [
            {"name": NONCE_VARIABLE, "value": nonce},
            {"name": JOIN_VARIABLE, "valueFrom": join},
            *({"name": key, "value": value} for key, value in more.items()),
        ],
        "resources": {"requests": {**resources, **gpus}, "limits": {**limits, **gpus}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }


def _place(kubernetes: KubernetesConfig, pool: str) -> Manifest:
    """Node selection of a pod."""
    labels = dict(labels_of(kubernetes.node_labels))
    tolerations = [
        {
            "key": each.key,
            "operator": "Equal" if each.value else "Exists",
            **({"value": each.value} if each.value else {}),
            **({"effect": each.effect} if each.effect else {}),
        }
        for each in tolerations_of(kubernetes.tolerations)
    ]
    if kubernetes.spot != "none":
        key, value, tainted = SPOT[kubernetes.spot]
        labels[key] = value
        taint = {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        tolerations += [taint] if tainted else []
    if kubernetes.gpus:
        tolerations.append({"key": GPU, "operator": "Exists", "effect": "NoSchedule"})
    place: Manifest = {"nodeSelector": labels} if labels else {}
    if tolerations:
        place["tolerations"] = tolerations
    pools = pools_of(kubernetes.pools)
    wanted = list(pools.values()) if pool == ANY_POOL else [pools[pool]]
    terms = [
        {
            "matchExpressions": [
                {"key": key, "operator": "In", "values": [value]} for key, value in each.items()
            ]
        }
        for each in wanted
    ]
    if terms:  # one of them is enough
        required = {"nodeSelectorTerms": terms}
        place["affinity"] = {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}
        }
    return place
