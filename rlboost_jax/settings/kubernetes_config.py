"""Settings of servers that are pods of a Kubernetes cluster: `fleet.kubernetes`."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from rlboost_jax.platform.mistakes import suggestion
from rlboost_jax.settings.setting import setting

Spot = Literal["none", "gke", "eks", "aks", "karpenter"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
OWN_VARIABLES: Final = ("RLBOOST_JOIN", "RLBOOST_NONCE", "RLBOOST_TOKEN")
_KEY: Final = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"
)
_VALUE: Final = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?")
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_VARIABLE: Final = re.compile(r"[A-Za-z_]\w*")
_QUANTITY: Final = re.compile(r"\d+(\.\d+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")


@dataclass(frozen=True, kw_only=True)
class KubernetesConfig:
    """One pod for each server. docs/how-to/fleet-kubernetes.md has the page."""

    image: str = setting("", "image that has rlboost: registry/name@sha256:…, or with a tag")
    pull_policy: PullPolicy = setting("IfNotPresent", "when a node pulls the image anew")
    pull_secret: str = setting("", 'name of a Secret with the registry\'s password; "": none')
    context: str = setting(
        "",
        'context of the kubeconfig; "": its current one',
        note="Within a cluster the service account of the trainer's pod is used.",
    )
    namespace: str = setting("rlboost", "namespace that pods and their Secrets are made in")
    service_account: str = setting(
        "rlboost-server", "account that pods run as; they get no token of it, so it needs no rights"
    )
    pools: str = setting(
        "",
        'kinds of nodes by their labels: "l4: KEY=VALUE, KEY=VALUE; t4: KEY=VALUE"',
        note="Each is a pool. Where any will do, a pod may go to a node of each of them.",
    )
    node_labels: str = setting("", 'labels that nodes of all pools have: "KEY=VALUE, KEY=VALUE"')
    spot: Spot = setting("none", "platform whose spot nodes pods select and tolerate")
    tolerations: str = setting("", 'tolerations of taints: "KEY=VALUE:EFFECT, KEY:EFFECT"')
    gpus: int = setting(1, "GPUs of a pod, nvidia.com/gpu", at_least=0)
    resources: str = setting(
        "",
        'further resources of a pod: "cpu=8, memory=64Gi"',
        note="Requests, and limits save for cpu.",
    )
    queue: str = setting("", 'LocalQueue of Kueue that admits pods; "": no Kueue')
    priority_class: str = setting("", 'priority class of pods; "": the cluster\'s default')
    user: int = setting(
        10001,
        "user id that a server runs as; root is not allowed",
        note="The project's Dockerfile makes this user. A user that an image does not know "
        "has no home directory for compiled programs: then set compile_cache_dir.",
        at_least=1,
    )
    program: str = setting("rlboost rollout", "program of the server, in its image")
    environment: str = setting(
        "",
        'variables of a server: "NAME=VALUE NAME=VALUE", quoted as in a shell',
        note="Who may see pods sees these.",
    )
    minutes: int = setting(
        1440,
        "time after which the cluster ends a pod",
        unit="min",
        note="The manager asks for another one then. It bounds what a forgotten pod costs.",
        at_least=1,
    )
    pending_seconds: float = setting(
        900.0, "time that a pod may wait for a node before it is deleted; 0: any", at_least=0
    )
    pull_seconds: float = setting(
        120.0,
        "time that a container may fail to begin before its pod is deleted",
        note="A wrong image's name, a registry that refuses. Pulling itself may take any time.",
        above=0,
    )
    timeout_seconds: float = setting(30.0, "time limit of a call of the API server", above=0)
    poll_seconds: float = setting(5.0, "time between lists of pods", above=0)


class Toleration(NamedTuple):
    key: str
    value: str  # "": any
    effect: str  # "": every


def labels_of(text: str) -> Mapping[str, str]:
    """Parse labels such as "KEY=VALUE, KEY=VALUE".

    Raises:
        ValueError: it is none, in one line.
    """
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise ValueError(f"{part!r} is no label; write KEY=VALUE")
        if key in found:
            raise ValueError(f"{key} is there twice")
        found[key] = value
    return found


def pools_of(text: str) -> Mapping[str, Mapping[str, str]]:
    """Parse labels of nodes, by the name of their pool.

    Raises:
        ValueError: it is none, in one line.
    """
    found: dict[str, Mapping[str, str]] = {}
    for part in filter(None, map(str.strip, text.split(";"))):
        name, colon, labels = part.partition(":")
        if not colon or not _VALUE.fullmatch(name) or not name:
            raise ValueError(f"{part!r} is no pool; write NAME: KEY=VALUE")
        if name in (*found, "any"):
            raise ValueError(f"a pool {name!r} there is already")
        if not labels.strip():
            raise ValueError(f"pool {name!r} has no label; write {name}: KEY=VALUE")
        found[name] = labels_of(labels)
    return found


def tolerations_of(text: str) -> tuple[Toleration, ...]:
    """Parse tolerations such as "KEY=VALUE:EFFECT, KEY:EFFECT, KEY".

    Raises:
        ValueError: it is none, in one line.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        taint, _, effect = part.partition(":")
        key, _, value = taint.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise ValueError(f"{part!r} is no taint; write KEY=VALUE:EFFECT")
        if effect and effect not in EFFECTS:
            raise ValueError(f"{effect!r} is no effect of a taint; {suggestion(effect, EFFECTS)}")
        found.append(Toleration(key, value, effect))
    return tuple(found)


def quantities_of(text: str) -> Mapping[str, str]:
    """Parse resource requests such as "cpu=8, memory=64Gi".

    Raises:
        ValueError: it is none, in one line.
    """
    found = labels_of(text)
    for name, quantity in found.items():
        if not _QUANTITY.fullmatch(quantity):
            raise ValueError(f"{quantity!r} is no quantity of {name}; 8, 500m and 64Gi are")
    return found


def variables_of(text: str) -> Mapping[str, str]:
    """Parse environment variables such as "NAME=VALUE NAME='VALUE'".

    Raises:
        ValueError: it is none, in one line.
    """
    found: dict[str, str] = {}
    for word in shlex.split(text):
        name, equals, value = word.partition("=")
        if not equals or not _VARIABLE.fullmatch(name):
            raise ValueError(f"{word!r} is no variable; write NAME=VALUE")
        if name in OWN_VARIABLES:
            raise ValueError(f"{name} is the run's own")
        found[name] = value
    return found


def kubernetes_mistakes(
    kubernetes: KubernetesConfig, *, notice_signal: str, notice_seconds: float
) -> Iterator[str]:
    """Yield a line per mistake in the settings of the provider "kubernetes"."""
    if not kubernetes.image.strip():
        yield "fleet.kubernetes.image is ''; name an image that has rlboost"
    readers: Mapping[str, Callable[[str], object]] = {
        "pools": pools_of,
        "node_labels": labels_of,
        "tolerations": tolerations_of,
        "resources": quantities_of,
        "environment": variables_of,
        "program": shlex.split,
    }
    for what, read in readers.items():
        text = getattr(kubernetes, what)
        try:
            found = read(text)
        except ValueError as error:
            yield f"fleet.kubernetes.{what} is {text!r}: {error}"
        else:
            if what == "program" and not found:
                yield "fleet.kubernetes.program is ''; name the server, 'rlboost rollout'"
    for what in ("namespace", "service_account", "queue", "priority_class", "pull_secret"):
        name = getattr(kubernetes, what)
        needed = what in ("namespace", "service_account")
        if (name or needed) and not _NAME.fullmatch(name):
            yield (
                f"fleet.kubernetes.{what} is {name!r}, which is no name; small letters, digits, "
                "'-' and '.' make one"
            )
    if notice_seconds and notice_signal != "SIGTERM":
        yield (
            f"fleet.notice_signal is {notice_signal!r}; a pod hears SIGTERM and no other signal, "
            "set it to 'SIGTERM'"
        )
