"""In place of the package `sky`: the functions of SkyPilot's SDK that are used, without a server.

As with the real one each is a request, which goes on by itself, and whose result or error is asked
for by its number. tests/skypilot has the real one.
"""

import enum
import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.providers import sky_machines

KNOWN = {"name", "num_nodes", "resources", "envs", "secrets", "setup", "run", "file_mounts"}


class ClusterStatus(enum.Enum):
    INIT = "INIT"
    UP = "UP"
    STOPPED = "STOPPED"


class ResourcesUnavailableError(Exception):
    pass


class ClusterDoesNotExist(ValueError):
    pass


@dataclass
class Request:
    status: str = "RUNNING"
    result: Any = None
    error: Exception | None = None


class FakeSky:
    """
    Attributes:
        anew: its server was started anew, and knows of no request.
        launched: tasks by cluster, with the options of their launches.
        hang: launches go on for ever, until they are cancelled.
        busy: clusters that are taken down for ever.
        downs: clusters that were to be taken down, one for each request.
        states: what is said of clusters in place of UP.
    """

    StatusRefreshMode = SimpleNamespace(AUTO="AUTO")

    class Task:
        @staticmethod
        def from_yaml_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
            if unknown := config.keys() - KNOWN:
                raise ValueError(f"unknown fields: {', '.join(unknown)}")
            return config

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.anew = False
        self.launched: dict[str, dict[str, Any]] = {}
        self.hang = threading.Event()
        self.busy: set[str] = set()
        self.downs: list[str] = []
        self.states: dict[str, str] = {}
        self._requests: dict[str, Request] = {}
        self._numbers = itertools.count()
        self._hanging: dict[str, str] = {}  # clusters that are launched for ever: requests

    def launch(self, task: Mapping[str, Any], cluster_name: str, **options: Any) -> str:
        self.launched[cluster_name] = {**task, **options}
        if self.hang.is_set():
            number = self._number()
            self._hanging[cluster_name] = number
            return number
        return self._begin(lambda: sky_machines.launch(self.folder, cluster_name, task))

    def status(self, refresh: str, all_users: bool) -> str:
        assert refresh == "AUTO" and not all_users
        return self._begin(
            lambda: [
                {"name": name, "status": self._state(name), "init_status_reason": None}
                for name in (*sky_machines.clusters(self.folder), *self._hanging, "mine")
            ]
        )

    def down(self, cluster: str) -> str:
        self.downs.append(cluster)
        if cluster in self.busy:
            return self._number()
        if (number := self._hanging.pop(cluster, None)) is not None:
            self._requests[number].status = "CANCELLED"
            return self._begin(lambda: None)
        return self._begin(lambda: sky_machines.down(self.folder, cluster))

    def cancel(self, cluster: str, all: bool) -> str:
        assert all
        return self._begin(lambda: sky_machines.cancel(self.folder, cluster))

    def api_status(self, requests: Sequence[str]) -> list[Request]:
        return [] if self.anew else [self._requests[number] for number in requests]

    def fail(self, reason: str) -> None:
        """All requests that go on."""
        for request in self._requests.values():
            if request.status == "RUNNING":
                request.status, request.error = "FAILED", RuntimeError(reason)

    def api_cancel(self, requests: Sequence[str]) -> None:
        for number in requests:
            self._requests[number].status = "CANCELLED"
        self._hanging = {c: n for c, n in self._hanging.items() if n not in requests}

    def get(self, number: str) -> Any:
        request = self._requests[number]
        if request.status == "CANCELLED":
            raise RuntimeError("RequestCancelled")
        if request.error is not None:
            raise request.error
        return request.result

    def _state(self, name: str) -> ClusterStatus:
        if name in self._hanging:
            return ClusterStatus.INIT
        return ClusterStatus[self.states.get(name, "UP")]

    def _number(self) -> str:
        number = f"request-{next(self._numbers)}"
        self._requests[number] = Request()
        return number

    def _begin(self, work: Callable[[], Any]) -> str:
        number = self._number()
        request = self._requests[number]

        def run() -> None:
            try:
                request.result = work()
            except sky_machines.Unavailable as error:
                request.error = ResourcesUnavailableError(*error.args)
            except sky_machines.NoSuchCluster as error:
                request.error = ClusterDoesNotExist(*error.args)
            except Exception as error:
                request.error = error
            if request.status == "RUNNING":
                request.status = "FAILED" if request.error else "SUCCEEDED"

        threading.Thread(target=run, daemon=True).start()
        return number
