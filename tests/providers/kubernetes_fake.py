"""A light Kubernetes API server: the launcher's verbs over HTTP, with pods as processes.

It answers as a real one does where that matters: a name that is taken (409), none of that name
(404), a quota (403), graceful deletion, a Secret that goes with its owner. It has no watch, for
nothing watches. tests/kubernetes has a real one.
"""

import base64
import contextlib
import json
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.providers.pod_process import Object, PodProcess, container_status, over

NOW = "2026-01-01T00:00:00Z"
LOOK_SECONDS = 0.01  # between two looks of the server whether it is closed


class FakeCluster:
    """
    Attributes:
        quota: pods that there may be.
        full: no node has room: pods wait.
        no_image: nodes cannot pull any image.
        answers: for the next requests, in place of what is true: code and headers.
        away: nothing is answered while this is set.
        blind: a file, that holds why nothing can be listed while it is there.
        seen: method and path of each request, in order.
        second: of its graces, in seconds.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.quota = 100
        self.full = self.no_image = False
        self.answers: list[tuple[int, Mapping[str, str]]] = []
        self.away, self.blind = threading.Event(), folder / "blind"
        self.seen: list[str] = []
        self.second = 0.05
        self.pods: dict[str, Object] = {}
        self.secrets: dict[str, Object] = {}
        self.processes: dict[str, PodProcess] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        serves = threading.Thread(
            target=self._server.serve_forever, args=(LOOK_SECONDS,), daemon=True
        )
        serves.start()
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(kubeconfig(f"http://127.0.0.1:{self._server.server_port}"))

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        for process in self.processes.values():
            process.kill()

    def evict(self, name: str, **condition: str) -> None:
        """As a drain does, of the instance of that name."""
        with self._lock:
            pod = self._of(name)
            if condition:
                pod["status"]["conditions"] = [
                    {"type": "DisruptionTarget", "status": "True", **condition}
                ]
            self._delete(pod["metadata"]["name"], pod["spec"]["terminationGracePeriodSeconds"])

    def fail(self, name: str, **status: str) -> None:
        """As a node that shuts down does, with all on it; its log is gone, too."""
        with self._lock:
            pod = self._of(name)
            self.processes.pop(pod["metadata"]["name"]).kill()
            pod["status"] = {"phase": "Failed", **status}

    def process(self, name: str) -> PodProcess:
        with self._lock:
            return self.processes[self._of(name)["metadata"]["name"]]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Object) -> Any:
        """Answer a request with an object, a text, or code and message of a refusal."""
        with self._lock:
            self._tick()
            kind, _, rest = path.partition("/namespaces/rlboost/")[2].partition("/")
            match method, kind, rest.split("/") if rest else []:
                case "POST", "pods", []:
                    return self._create_pod(body)
                case "POST", "secrets", []:
                    return self._create_secret(body)
                case "GET", "pods", [] if self.blind.exists():
                    return 500, self.blind.read_text().strip()
                case "GET", "pods", []:
                    (key,) = query["labelSelector"]
                    listed = [p for p in self.pods.values() if key in p["metadata"]["labels"]]
                    return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": listed}
                case _, "pods", [name, *_] if name not in self.pods:
                    return 404, f'pods "{name}" not found'
                case "GET", "pods", [name]:
                    return self.pods[name]
                case "GET", "pods", [name, "log"]:
                    if name not in self.processes:
                        return 400, "container is not there"
                    return self.processes[name].log.read_text()
                case "DELETE", "pods", [name]:
                    pod = self.pods[name]
                    self._delete(name, int(query["gracePeriodSeconds"][0]))
                    self._tick()
                    return pod
        return 405, "no such verb"

    def _create_pod(self, body: Object) -> Any:
        name = body["metadata"]["name"]
        if name in self.pods:
            return 409, f'pods "{name}" already exists'
        if len(self.pods) >= self.quota:
            return 403, f'pods "{name}" is forbidden: exceeded quota: spot, limited: {self.quota}'
        body["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": NOW}
        body["status"] = {"phase": "Pending"}
        self.pods[name] = body
        self._tick()
        return body

    def _create_secret(self, body: Object) -> Any:
        name = body["metadata"]["name"]
        if name in self.secrets:
            return 409, f'secrets "{name}" already exists'
        text = body.pop("stringData")
        body["data"] = {k: base64.b64encode(v.encode()).decode() for k, v in text.items()}
        self.secrets[name] = body
        return body

    def _delete(self, name: str, grace: int) -> None:
        pod = self.pods[name]
        meta, process = pod["metadata"], self.processes.get(name)
        if process is None or pod["status"]["phase"] != "Running":
            del self.pods[name]
            return
        grace = min(grace, meta.get("deletionGracePeriodSeconds", grace))
        meta |= {"deletionTimestamp": NOW, "deletionGracePeriodSeconds": grace}
        process.end_within(grace * self.second)

    def _tick(self) -> None:
        """What scheduler, kubelets and garbage collector have done by now."""
        for name, pod in list(self.pods.items()):
            process, status = self.processes.get(name), pod["status"]
            if status["phase"] == "Pending":
                self._advance(name, pod)
            elif process is not None and (code := process.code) is not None:
                pod["status"] = {
                    "phase": "Failed" if code else "Succeeded",
                    "containerStatuses": [container_status(pod, over(code))],
                }
                if "deletionTimestamp" in pod["metadata"]:
                    del self.pods[name]
        owners = {pod["metadata"]["uid"] for pod in self.pods.values()}
        for name, secret in list(self.secrets.items()):
            if not owners & {each["uid"] for each in secret["metadata"]["ownerReferences"]}:
                del self.secrets[name]

    def _advance(self, name: str, pod: Object) -> None:
        status = pod["status"]
        if self.full and "nodeName" not in pod["spec"]:
            message = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            status["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": message,
                }
            ]
            return
        pod["spec"]["nodeName"] = "node-0"
        status.pop("conditions", None)
        if self.no_image:
            waiting = {"reason": "ErrImagePull", "message": "registry: manifest unknown"}
            status["containerStatuses"] = [container_status(pod, {"waiting": waiting})]
            return
        with contextlib.suppress(KeyError):  # its Secret is not there yet
            log = self.folder / f"{name}.log"
            self.processes[name] = PodProcess(pod, lambda s: self.secrets[s]["data"], log)
            pod["status"] = {
                "phase": "Running",
                "containerStatuses": [container_status(pod, {"running": {}})],
            }

    def _of(self, name: str) -> Object:
        (pod,) = (p for p in self.pods.values() if p["metadata"]["labels"]["rlboost/name"] == name)
        return pod

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                cluster.seen.append(f"{self.command} {url.path.rpartition('rlboost/')[2]}")
                while cluster.away.is_set():
                    time.sleep(0.01)
                if cluster.answers:
                    code, headers = cluster.answers.pop(0)
                    self._send(code, status(code, "as the test says"), headers)
                    return
                answer = cluster.answer(self.command, url.path, parse_qs(url.query, True), body)
                if isinstance(answer, tuple):
                    self._send(answer[0], status(*answer))
                else:
                    self._send(200, answer)

            do_POST = do_DELETE = do_GET

            def _send(
                self, code: int, answer: Any, headers: Mapping[str, str] | None = None
            ) -> None:
                text = isinstance(answer, str)
                data = (answer if text else json.dumps(answer)).encode()
                kind = "text/plain" if text else "application/json"
                with contextlib.suppress(ConnectionError):
                    self.send_response(code)
                    for name, value in {"Content-Type": kind, **(headers or {})}.items():
                        self.send_header(name, value)
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                pass

        return Handler


@contextlib.contextmanager
def fake_cluster(folder: Path) -> Iterator[FakeCluster]:
    cluster = FakeCluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()


def status(code: int, message: str) -> Object:
    return {"kind": "Status", "apiVersion": "v1", "code": code, "message": message}


def kubeconfig(server: str, token: str = "of-the-trainer", authority: str = "") -> str:
    """As YAML reads it, too."""
    cluster = {"server": server, **({"certificate-authority": authority} if authority else {})}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "trainer", "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "trainer"}}],
        }
    )
