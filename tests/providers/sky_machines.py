"""What SkyPilot's executor does with clouds, done with processes of this host and a folder.

`<folder>/clusters/<name>` has the process id of a cluster's job. A cluster whose job has ended has
taken itself down. A file `fail` in the folder is the reason why nothing can be launched, `blind`
why nothing can be listed; while there is one `late`, launches go on. Of the standard library alone:
a real API server uses it, too.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.02


class Unavailable(Exception):
    """Nothing can be launched."""


class NoSuchCluster(Exception):
    """It has been taken down."""


def launch(folder: Path, cluster: str, task: Mapping[str, Any]) -> None:
    """Set a job up and start it.

    Args:
        task: in SkyPilot's form.
    """
    if (folder / "fail").exists():
        raise Unavailable((folder / "fail").read_text().strip())
    while (folder / "late").exists():
        time.sleep(LOOK_SECONDS)
    (folder / "clusters").mkdir(exist_ok=True)
    (folder / "logs").mkdir(exist_ok=True)
    info = '{"cluster_name": "x", "cloud": "Here", "region": "nowhere", "zone": "none"}'
    with open(folder / "logs" / cluster, "wb") as log:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"{task.get('setup') or ''}\n{task['run']}"],
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
                "SKYPILOT_CLUSTER_INFO": info,
                **{key: str(value) for key, value in (task.get("envs") or {}).items()},
                **{key: str(value) for key, value in (task.get("secrets") or {}).items()},
            },
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    part = folder / f"{cluster}.part"
    part.write_text(str(process.pid))
    part.rename(folder / "clusters" / cluster)


def clusters(folder: Path) -> list[str]:
    """Names of the clusters that are up."""
    if (folder / "blind").exists():
        raise RuntimeError((folder / "blind").read_text().strip())
    found = []
    for path in sorted((folder / "clusters").glob("*")):
        with suppress(FileNotFoundError):
            if _lives(int(path.read_text())):
                found.append(path.name)
            else:
                path.unlink()
    return found


def cancel(folder: Path, cluster: str) -> None:
    """SIGTERM to its job."""
    with suppress(ProcessLookupError):
        os.kill(pid_of(folder, cluster), signal.SIGTERM)


def down(folder: Path, cluster: str) -> None:
    """Returns when nothing of it is left."""
    pid = pid_of(folder, cluster)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    while _lives(pid):
        time.sleep(LOOK_SECONDS)
    (folder / "clusters" / cluster).unlink(missing_ok=True)


def pid_of(folder: Path, cluster: str) -> int:
    try:
        return int((folder / "clusters" / cluster).read_text())
    except FileNotFoundError:
        raise NoSuchCluster(f"Cluster {cluster!r} does not exist.") from None


def _lives(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
