"""Stand-in servers that come and go, by hand or as the synthetic trace says."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

from benchmarks.stand_in import StandIn
from rlboost_jax.providers.market import market_events
from rlboost_jax.settings.fleet_config import FleetConfig

ROOT = Path(__file__).parents[1]
SIGKILL, SIGTERM = 9, 15


class Nursery:
    """Starts and signals servers through one prepared process.

    Args:
        folder: for the servers' output.
    """

    def __init__(self, settings: StandIn, address: str, join: Path, folder: Path) -> None:
        self._args = [f"--manager={address}", f"--join={join}"]
        self._args += [f"--{f.name}={getattr(settings, f.name)}" for f in fields(settings)]
        self._log = str(folder / "servers.log")
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.stand_in", "--nursery"],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._living: set[str] = set()
        self.killed = 0

    def start(self, name: str, *more: str) -> None:
        """
        Args:
            more: options of this server; they go before those of all.
        """
        self._living.add(name)
        args = [*self._args, f"--name={name}", *more]
        self._say(start=name, args=args, env={}, log=self._log)

    def kill(self, name: str) -> None:
        self._living.remove(name)
        self.killed += 1
        self._say(signal=name, number=SIGKILL)

    def close(self) -> None:
        """End all servers and wait until they have."""
        for name in self._living:
            self._say(signal=name, number=SIGTERM)
        assert self._process.stdout is not None and self._process.stdin is not None
        living = self._living
        for line in self._process.stdout:
            living.discard(json.loads(line).get("exited", ""))
            if not living:
                break
        self._process.stdin.close()
        self._process.wait()

    def _say(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()


def play(market: FleetConfig, nursery: Nursery, stop: threading.Event, seed: int) -> None:
    """Kill and start servers as the trace says. Those of its first moment are there already."""
    began = time.monotonic()
    for event in market_events(market, seed=seed):
        if event.seconds <= 0:
            continue
        if stop.wait(max(0.0, began + event.seconds - time.monotonic())):
            return
        if event.kind == "add":
            nursery.start(event.name)
        else:
            nursery.kill(event.name)
