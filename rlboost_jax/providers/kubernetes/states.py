"""State of a server from its pod's status. Pure; reads the API's JSON of any release."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from rlboost_jax.providers.kubernetes.manifests import CONTAINER, NAME, NONCE, RUN
from rlboost_jax.providers.launcher import JobState

Pod = Mapping[str, Any]

LINE: Final = 300  # characters of a reason
# Why a container waits that is about to begin; every other reason is of one that failed to.
BEGINNING: Final = ("ContainerCreating", "PodInitializing", "")


@dataclass(frozen=True, kw_only=True)
class PodState:
    """State of a server's pod.

    Attributes:
        name: of the pod.
        tag: run, name and nonce.
        code: of the server's program, once it is over; None: not known.
        reason: why it is over or waits.
        unplaced: it waits for a node, or for its queue.
        failing: its container cannot begin, for now.
        leaves_in: seconds, from when it was asked to go, by whomever; None: nobody has.
        withdrawn: why somebody takes it back, as the cluster says; "" where it does not.
    """

    name: str
    tag: tuple[str, str, str]
    state: JobState
    code: int | None = None
    reason: str = ""
    unplaced: bool = False
    failing: bool = False
    leaves_in: int | None = None
    withdrawn: str = ""


def pod_state(pod: Pod) -> PodState | None:
    """State of a pod; None if it lacks our tag."""
    meta, status = pod.get("metadata") or {}, pod.get("status") or {}
    labels = meta.get("labels") or {}
    if not all(key in labels for key in (RUN, NAME, NONCE)):
        return None
    phase = status.get("phase") or "Pending"
    container = _container(status)
    deleted = meta.get("deletionTimestamp") is not None
    disrupted = _condition(status, "DisruptionTarget")  # of 1.26 and later
    named = (meta["name"], (labels[RUN], labels[NAME], labels[NONCE]))
    if phase in ("Succeeded", "Failed"):
        ended = container.get("terminated") or {}
        said = ended.get("reason") or phase.lower()
        said = f"{said}: {ended['message']}" if ended.get("message") else said
        if status.get("reason"):  # Evicted, DeadlineExceeded, NodeShutdown, Preempting
            said = ": ".join(filter(None, (status["reason"], status.get("message"))))
        code = ended.get("exitCode")
        return _state(named, "over", said, code=code if code is not None and code < 128 else None)
    waiting = container.get("waiting") or {}
    why = ": ".join(filter(None, (waiting.get("reason"), waiting.get("message"))))
    unplaced = phase == "Pending" and not (pod.get("spec") or {}).get("nodeName")
    if unplaced:
        condition = _condition(status, "PodScheduled")
        why = ": ".join(filter(None, (condition.get("reason"), condition.get("message"))))
    leaves_in = meta.get("deletionGracePeriodSeconds") or 0
    return _state(
        named,
        "waiting" if phase == "Pending" else "running",
        why,
        unplaced=unplaced,
        failing=phase == "Pending" and waiting.get("reason", "") not in BEGINNING,
        leaves_in=leaves_in if deleted or disrupted else None,
        withdrawn=": ".join(filter(None, (disrupted.get("reason"), disrupted.get("message")))),
    )


def _state(
    named: tuple[str, tuple[str, str, str]], state: JobState, reason: str, **more: Any
) -> PodState:
    name, tag = named
    line = " ".join(reason.split())[:LINE]
    return PodState(name=name, tag=tag, state=state, reason=line, **more)


def _container(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """State of the server's container."""
    for each in status.get("containerStatuses") or ():
        if each.get("name") == CONTAINER:
            return each.get("state") or {}
    return {}


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Condition of a kind that blocks the pod; empty if none does.

    PodScheduled blocks while it is False.
    """
    holds = "False" if kind == "PodScheduled" else "True"
    for each in status.get("conditions") or ():
        if each.get("type") == kind and each.get("status") == holds:
            return each
    return {}
