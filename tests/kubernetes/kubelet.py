"""A stand-in for kubelets: pods of its nodes as processes of this host, with their grace.

    python -m tests.kubernetes.kubelet KUBECONFIG FOLDER NODES

It does what a kubelet does as far as the API server shows it: nodes, statuses of pods, waiting for
Secrets, images that cannot be pulled (those named `missing/…`), graceful deletion, deadlines, logs.
Containers are no containers: images, users, limits and mounts mean nothing. It asks for its pods
every tenth of a second where a kubelet watches.
"""

import asyncio
import contextlib
import ssl
import sys
import time
from collections.abc import Awaitable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
from aiohttp import web
from lightkube import ApiError, AsyncClient, KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, NodeStatus, Pod, PodStatus, Secret
from lightkube.types import PatchType

from tests.providers.pod_process import Object, PodProcess, container_status, over

LOOK_SECONDS = 0.1
MERGE = PatchType.MERGE
ROOM = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": "8"}


class Kubelet:
    """Kubelet of all nodes of a cluster."""

    def __init__(self, client: AsyncClient, folder: Path, nodes: int, port: int) -> None:
        self._client, self._folder, self._port = client, folder, port
        self._nodes = [f"node-{number}" for number in range(nodes)]
        self.processes: dict[str, PodProcess] = {}  # by the pod's uid
        self._begun: dict[str, float] = {}
        self._said: dict[str, Object] = {}  # the status that the API server has of ours

    async def run(self) -> None:
        for number, name in enumerate(self._nodes):
            await self._again(self._register(name, zone="ab"[number % 2]))
        print("ready", flush=True)
        while True:
            with contextlib.suppress(httpx2.HTTPError):  # away: what runs goes on
                found = [pod.to_dict() async for pod in self._client.list(Pod, namespace="*")]
                await asyncio.gather(*(self._look(pod) for pod in found if _ours(pod)))
                for uid in self.processes.keys() - {pod["metadata"]["uid"] for pod in found}:
                    self.processes.pop(uid).kill()  # it was deleted by force
            await asyncio.sleep(LOOK_SECONDS)

    async def log(self, request: web.Request) -> web.Response:
        """As the API server asks a kubelet for it."""
        path = self._folder / f"{request.match_info['pod']}.log"
        if not path.exists():
            raise web.HTTPNotFound(text="no such container")
        lines = path.read_text(errors="replace").splitlines(keepends=True)
        tail = int(request.query.get("tailLines", len(lines)))
        return web.Response(text="".join(lines[-tail:] if tail else []))

    async def _register(self, name: str, zone: str) -> None:
        labels = {"kubernetes.io/hostname": name, "test/zone": zone}
        node = Node(metadata=ObjectMeta(name=name, labels=labels))
        with contextlib.suppress(ApiError):  # it is there already
            await self._client.create(node)
        status = {
            "capacity": ROOM,
            "allocatable": ROOM,
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
        }
        await self._client.patch(NodeStatus, name, {"status": status}, patch_type=MERGE)
        # No controller looks after conditions here: a node is made with a taint that says so.
        await self._client.patch(Node, name, {"spec": {"taints": None}}, patch_type=MERGE)

    async def _look(self, pod: Object) -> None:
        """Do for a pod what is due."""
        meta, spec, uid = pod["metadata"], pod["spec"], pod["metadata"]["uid"]
        process = self.processes.get(uid)
        if pod.get("status", {}).get("phase") in ("Succeeded", "Failed"):
            if "deletionTimestamp" in meta:  # since it ran, and as it ended
                await self._forget(pod)
            return
        if process is None:
            if "deletionTimestamp" in meta:
                await self._forget(pod)
            elif meta["name"] not in self._begun:
                await self._begin(pod)
            return
        if "deletionTimestamp" in meta:
            process.end_within(meta.get("deletionGracePeriodSeconds") or 0)
        deadline = spec.get("activeDeadlineSeconds")
        late = deadline is not None and time.monotonic() > self._begun[meta["name"]] + deadline
        if late:
            process.end_within(spec["terminationGracePeriodSeconds"])
        if (code := process.code) is None:
            return
        ended = {"reason": "DeadlineExceeded"} if late else {}
        phase = "Failed" if code or late else "Succeeded"
        await self._say(pod, {"phase": phase, **ended}, over(code))
        if "deletionTimestamp" in meta:
            await self._forget(pod)

    async def _begin(self, pod: Object) -> None:
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        image = pod["spec"]["containers"][0]["image"]
        if image.startswith("missing/"):
            failed_before = self._said.get(pod["metadata"]["uid"])
            why = "ImagePullBackOff" if failed_before else "ErrImagePull"
            waiting = {"reason": why, "message": f"manifest for {image} not found"}
            await self._say(pod, {"phase": "Pending"}, {"waiting": waiting})
            return
        data: dict[str, dict[str, str]] = {}
        for each in pod["spec"]["containers"][0].get("env", ()):
            if of := each.get("valueFrom", {}).get("secretKeyRef"):
                try:
                    secret = await self._client.get(Secret, of["name"], namespace=namespace)
                except ApiError as error:
                    waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
                    await self._say(pod, {"phase": "Pending"}, {"waiting": waiting})
                    return
                data[of["name"]] = dict(secret.data or {})
        process = PodProcess(pod, data.__getitem__, self._folder / f"{name}.log")
        self.processes[pod["metadata"]["uid"]] = process
        self._begun[name] = time.monotonic()
        running = {"phase": "Running", "startTime": _now(), "podIP": "127.0.0.1"}
        await self._say(pod, running, {"running": {"startedAt": _now()}})

    async def _say(self, pod: Object, status: Object, state: Object) -> None:
        uid = pod["metadata"]["uid"]
        said = {**status, "containerStatuses": [container_status(pod, state)]}
        if self._said.get(uid) == said:
            return
        meta = pod["metadata"]
        await self._again(
            self._client.patch(
                PodStatus,
                meta["name"],
                {"status": said},
                namespace=meta["namespace"],
                patch_type=MERGE,
            )
        )
        self._said[uid] = said

    async def _forget(self, pod: Object) -> None:
        """The last word on a pod that was deleted: its process is gone."""
        meta = pod["metadata"]
        await self._again(
            self._client.delete(Pod, meta["name"], namespace=meta["namespace"], grace_period=0)
        )

    async def _again(self, call: Awaitable[Any]) -> None:
        """What fails is done at the next look: only then is it due again."""
        with contextlib.suppress(ApiError):
            await call


def _ours(pod: Object) -> bool:
    return str(pod["spec"].get("nodeName", "")).startswith("node-")


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def main(kubeconfig: Path, folder: Path, nodes: int) -> None:
    client = AsyncClient(config=KubeConfig.from_file(kubeconfig))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(kubeconfig.parent / "tls.crt", kubeconfig.parent / "tls.key")
    app = web.Application()
    runner = web.AppRunner(app)
    kubelet = Kubelet(client, folder, nodes, port=0)
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", kubelet.log)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    kubelet._port = runner.addresses[0][1]
    try:
        await kubelet.run()
    finally:
        for process in kubelet.processes.values():
            process.kill()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])))
