"""What a kubelet does with a pod's container, with a process of this host in place of it."""

import base64
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Object = dict[str, Any]
KEPT = ("PATH", "HOME", "LANG")  # of this process's environment, as an image would have them


class PodProcess:
    """A pod's one container, as a process; user, capabilities and resources are left alone.

    Args:
        secret: the data of a Secret; KeyError where there is none yet, which is passed on.
        log: that it writes to.
    """

    def __init__(self, pod: Object, secret: Callable[[str], Mapping[str, str]], log: Path) -> None:
        (container,) = pod["spec"]["containers"]
        environment = {name: os.environ[name] for name in KEPT if name in os.environ}
        for each in container.get("env", ()):
            if "value" in each:
                environment[each["name"]] = each["value"]
            else:
                of = each["valueFrom"]["secretKeyRef"]
                environment[each["name"]] = base64.b64decode(secret(of["name"])[of["key"]]).decode()
        self.log = log
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [*container["command"], *container.get("args", ())],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._kill_at: float | None = None

    def end_within(self, seconds: float) -> None:
        """SIGTERM once, SIGKILL when the shortest grace is over; `code` looks at the clock."""
        if self._kill_at is None:
            self._process.send_signal(signal.SIGTERM)
        due = time.monotonic() + seconds
        self._kill_at = due if self._kill_at is None else min(self._kill_at, due)

    def kill(self) -> None:
        self._process.kill()

    @property
    def code(self) -> int | None:
        """None while it runs; of one that a signal ended 128 and the signal's number."""
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._process.kill()
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code


def container_status(pod: Object, state: Object) -> Object:
    (container,) = pod["spec"]["containers"]
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": "running" in state,
        "restartCount": 0,
        "state": state,
    }


def over(code: int) -> Object:
    """The state of a container whose program ended with that code."""
    return {"terminated": {"exitCode": code, "reason": "Error" if code else "Completed"}}
