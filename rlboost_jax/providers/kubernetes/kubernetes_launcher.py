"""Servers as pods: one pod an instance, with its tag in labels.

A pod and not a Job: a Job's controller makes another pod of the same template when one is evicted
or deleted. That would be a second life of one nonce, which the seam forbids, and the manager asks
for a new instance anyway, or for none.

Nobody but this launcher removes pods that are over, so each is reported with `remains`, and is
deleted when its provider has seen it. A pod that waits for too long, or whose container cannot
begin, is one that is over and refused.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from pathlib import Path

from rlboost_jax.providers.base import Rendezvous
from rlboost_jax.providers.external_program import last_line
from rlboost_jax.providers.kubernetes import manifests
from rlboost_jax.providers.kubernetes.kubernetes_api import AlreadyExists, KubernetesApi
from rlboost_jax.providers.kubernetes.states import PodState, pod_state
from rlboost_jax.providers.launcher import Job, LaunchFailed
from rlboost_jax.settings.fleet_config import FleetConfig
from rlboost_jax.settings.kubernetes_config import pools_of
from rlboost_jax.trust.credentials import packed

# The shortest grace that waits for the kubelet to say that the server is gone. With 0 the API
# server forgets the pod at once, though its process may go on, and its node be paid for.
SHORTEST_GRACE_SECONDS = 1


@dataclass
class _Watched:
    """State of a pod of this run in earlier lists.

    Attributes:
        since: when it was first seen to wait for a node, or to fail to begin; None: it does not.
        why: which of the two.
        ended: the reason of its end, with the last line of its log, once that was read.
    """

    since: float | None = None
    why: str = ""
    ended: str | None = None


class KubernetesLauncher:
    """Launcher of pods. The end of each server's log goes to `<workdir>/logs/<name>.log`.

    Args:
        api: of the cluster; None: as the settings say.
    """

    def __init__(
        self, fleet: FleetConfig, rendezvous: Rendezvous, *, api: KubernetesApi | None = None
    ) -> None:
        settings = fleet.kubernetes
        self._fleet, self._rendezvous, self._settings = fleet, rendezvous, settings
        self.pools = tuple(pools_of(settings.pools))
        self._api = api or KubernetesApi(
            settings.context, settings.namespace, timeout_seconds=settings.timeout_seconds
        )
        self._watched: dict[str, _Watched] = {}

    async def start(self, name: str, nonce: str, pool: str) -> None:
        run, join = self._rendezvous.run_id, self._rendezvous.join
        try:
            credentials = packed(join)
        except OSError as error:
            raise LaunchFailed(f"cannot read {join}: {error.strerror}", sure=True) from None
        pod = manifests.pod(
            self._fleet,
            run=run,
            name=name,
            nonce=nonce,
            pool=pool,
            address=self._rendezvous.address,
        )
        called = pod["metadata"]["name"]
        try:
            uid = (await self._api.create(pod)).metadata.uid
        except AlreadyExists:  # sent twice, and the first answer was lost
            uid = (await self._api.pod(called))["metadata"]["uid"]
        # The kubelet waits for it. Owned by a pod that there is, it cannot outlive it.
        try:
            await self._api.create(manifests.secret(pod, uid=uid, join=credentials))
        except AlreadyExists:
            pass
        except LaunchFailed as error:
            await self._take_back(called, error)

    async def stop(self, job: Job, grace_seconds: float) -> None:
        grace = max(SHORTEST_GRACE_SECONDS, ceil(grace_seconds))
        await self._api.delete_pod(job.handle, grace)

    async def list(self) -> Sequence[Job]:
        found = [state for pod in await self._api.pods() if (state := pod_state(pod)) is not None]
        own = [state for state in found if state.tag[0] == self._rendezvous.run_id]
        self._watched = {s.name: self._watched.get(s.name, _Watched()) for s in own}
        now = asyncio.get_running_loop().time()
        mine = await asyncio.gather(*(self._own_job(state, now) for state in own))
        others = [_job(state) for state in found if state.tag[0] != self._rendezvous.run_id]
        return [*mine, *others]

    async def _own_job(self, state: PodState, now: float) -> Job:
        watched = self._watched[state.name]
        if state.state == "over":
            if watched.ended is None:
                watched.ended = "; ".join(filter(None, (state.reason, await self._end_of(state))))
            return replace(_job(state), reason=watched.ended, remains=True)
        if late := self._late(state, watched, now):
            return replace(_job(state), state="over", reason=late, remains=True, refused=True)
        if state.leaves_in is None:
            return _job(state)
        # A list may be as old as the pause between two.
        left = max(0.0, state.leaves_in - self._settings.poll_seconds)
        why = state.withdrawn or "its pod was deleted or evicted"
        return replace(_job(state), withdrawn_in=left, reason=why)

    def _late(self, state: PodState, watched: _Watched, now: float) -> str:
        """Why a pod is abandoned; "" if it is not."""
        settings = self._settings
        why, most, doing = "", 0.0, ""
        if state.failing:
            why, most, doing = "failing", settings.pull_seconds, "cannot begin"
        elif state.unplaced and settings.pending_seconds:
            why, most, doing = "unplaced", settings.pending_seconds, "has no node"
        if why != watched.why:
            watched.why, watched.since = why, now
        if not why or watched.since is None or now < watched.since + most:
            return ""
        return f"{doing} for {most:g} s: {state.reason or 'the cluster does not say why'}"

    async def _end_of(self, state: PodState) -> str:
        """Keep a pod's log and return its last line; "" if it has none any more."""
        try:
            text = await self._api.log(state.name)
        except LaunchFailed:
            return ""
        path = self._rendezvous.workdir / "logs" / f"{state.tag[1]}.log"
        await asyncio.to_thread(_append, path, text)
        return last_line(text)

    async def _take_back(self, name: str, error: LaunchFailed) -> None:
        """Delete a pod that will have no credentials. Always raises LaunchFailed."""
        try:
            await self._api.delete_pod(name, SHORTEST_GRACE_SECONDS)
        except LaunchFailed:
            raise LaunchFailed(str(error)) from None
        raise LaunchFailed(str(error), sure=True) from None


def _job(state: PodState) -> Job:
    run, name, nonce = state.tag
    return Job(
        handle=state.name,
        run=run,
        name=name,
        nonce=nonce,
        state=state.state,
        code=state.code,
        reason=state.reason,
    )


def _append(path: Path, text: str) -> None:
    """Append to a log, ignoring a full disk."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return
