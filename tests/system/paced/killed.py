"""Kill a process of a run under test at a moment of its life that a plan names.

Moments are what Python tells its audit hooks: a module is imported, a file opened or renamed, a
socket bound or connected, a program started, a lock taken. Each has a name, such as `import
rlboost_jax.manager.journal_entries 1` or `rename manager.json 2`: how often a process has come to
the like. `RLBOOST_TEST_KILLS` names a folder:

    record      a file; each process appends its name and its moments
    plan.json   {"who": name, "moment": m, "times": n, "relay": whether its relay is the victim}

The first `times` processes of that name that come to the moment are killed there; of one whose
relay is the victim, so many relays one after the other. Then there is a file `kill-<k>` for each.
Relays have no moments of their own: they start without a site.
"""

import contextlib
import json
import os
import re
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.002
RELAY_SECONDS = 5.0  # for a relay to be followed by another
OFTEN = 3  # moments of one kind that are told apart
LIBRARIES = ("jax", "aiohttp", "flax", "optax", "orbax", "grain", "tensorstore", "numpy")
PROCESSES = {
    "rlboost_jax.main": "trainer",
    "rlboost_jax.manager": "manager",
    "rlboost_jax.rollout.zygote": "zygote",
    "rlboost_jax.rewards.reward_worker": "reward worker",
    "rlboost_jax.environments.environment_worker": "environment worker",
    "rlboost_jax.weights.file_server": "file server",
    "rlboost_jax.weights.peers": "server of pieces",
    "rlboost_jax.manager.service.page": "page",
    "rlboost_jax.observe.alert_process": "alerts",
}
PROGRAMS = os.environ.get("JAX_COMPILATION_CACHE_DIR", "")
FORKED = {"zygote": "server"}
RELAY = "start relay"  # of a process's own, after which there is one


def name_of(words: list[str]) -> str:
    """Name of a process by its command line; "" where it is none of ours."""
    name = PROCESSES.get(words[words.index("-m") + 1], "") if "-m" in words[:-1] else ""
    supervises = "--supervise" in words and "--nosupervise" not in words
    return "supervisor" if name == "trainer" and supervises else name


def kind_of(event: str, args: tuple[Any, ...], folder: str) -> str:
    """Kind of a moment; "" where it is none.

    Args:
        folder: of the run; other files are not of interest.
    """
    match event:
        case "import":
            ours = args[0].startswith("rlboost_jax.") or args[0] in LIBRARIES
            return f"import {args[0]}" if ours else ""
        case "open" | "os.rename" | "os.mkdir" | "os.remove":
            path = args[1] if event == "os.rename" else args[0]
            if not isinstance(path, str):
                return ""
            if PROGRAMS and path.startswith(PROGRAMS):
                return f"{event.removeprefix('os.')} a program"
            if folder not in path:
                return ""
            name = re.sub(r"[0-9a-f]{6,}|\d+", "#", path.partition(folder)[2])
            return f"{event.removeprefix('os.')} {name}"
        case "socket.bind" | "socket.connect" | "fcntl.flock" | "os.fork":
            return event
        case "subprocess.Popen":
            words = [str(word) for word in args[1]]
            relay = any(word.endswith("output_relay_process.py") for word in words)
            return RELAY if relay else f"start {name_of(words)}".strip()
        case _:
            return ""


class Killer:
    """Hook of one process, and of those that it forks.

    Args:
        name: of this process.
        folder: as above.
        run: folder of the run.
    """

    def __init__(self, name: str, folder: Path, run: str) -> None:
        self._name, self._folder, self._run = name, folder, run
        self._pid, self._seen = os.getpid(), Counter[str]()
        self._busy = False  # with a moment: what it does itself is none
        self._record = -1
        self._plan: dict[str, Any] = {}
        with contextlib.suppress(OSError):
            self._record = os.open(folder / "record", os.O_WRONLY | os.O_APPEND)
        with contextlib.suppress(OSError):
            self._plan = json.loads((folder / "plan.json").read_text())
        self.at("begin")

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        if self._busy:
            return
        self._busy = True
        try:
            if kind := kind_of(event, args, self._run):
                self.at(kind)
        finally:
            self._busy = False

    def at(self, kind: str) -> None:
        if self._pid != os.getpid():  # a fork
            self._pid, self._name = os.getpid(), FORKED.get(self._name, "")
            self._seen.clear()
        self._seen[kind] += 1
        moment = f"{kind} {self._seen[kind]}"
        if not self._name or self._seen[kind] > OFTEN:
            return
        if self._record >= 0:
            os.write(self._record, f"{self._name}: {moment}\n".encode())
        plan = self._plan
        if (self._name, moment) != (plan.get("who"), plan.get("moment")):
            return
        if plan["relay"]:
            for number in range(plan["times"]):
                if (relay := self._relay()) and self._takes(number):
                    os.kill(relay, signal.SIGKILL)
        elif any(self._takes(number) for number in range(plan["times"])):
            os.kill(os.getpid(), signal.SIGKILL)

    def _takes(self, number: int) -> bool:
        """Whether that kill is this process's to make."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._folder / f"kill-{number}", os.O_CREAT | os.O_EXCL))
            return True
        return False

    def _relay(self) -> int:
        """Process id of this process's relay; 0 where there is none."""
        end = time.monotonic() + RELAY_SECONDS
        while time.monotonic() < end:
            for each in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    state, parent = (each / "stat").read_text().rpartition(")")[2].split()[:2]
                    if int(parent) != os.getpid() or state == "Z":
                        continue
                    if "output_relay_process.py" in (each / "cmdline").read_text():
                        return int(each.name)
            time.sleep(LOOK_SECONDS)
        return 0


def hook(folder: Path, run: str) -> None:
    if name := name_of(sys.orig_argv):
        sys.addaudithook(Killer(name, folder, run).hear)
