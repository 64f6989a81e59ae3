"""Start real runs as a user does, watch their files, and end them."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
TINY = REPOSITORY / "configs" / "tiny.py"
MARK = "RLBOOST_TEST_WORKDIR"  # in the environment of every process of a run
PATIENCE_SECONDS = 240  # after which a run that does not get there is a failure


class Run:
    """One trainer process in a workdir, with whatever it starts."""

    def __init__(self, workdir: Path, *overrides: str, config: Path = TINY):
        self.workdir = workdir
        self.command = [
            *(sys.executable, "-m", "rlboost_jax.main"),
            *(f"--config={config}", f"--workdir={workdir}"),
            *(f"--config.{override}" for override in overrides),
        ]
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> "Run":
        self.process = subprocess.Popen(
            self.command,
            cwd=REPOSITORY,
            env={**os.environ, MARK: str(self.workdir)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self

    def finish(self) -> str:
        """Wait for a good end; returns what was printed."""
        output = self.end()
        assert self.process is not None
        assert self.process.returncode == 0, output[-4000:]
        return output

    def end(self, patience_seconds: float = PATIENCE_SECONDS) -> str:
        """Wait for the end, good or bad; returns what was printed."""
        assert self.process is not None
        try:
            output, _ = self.process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            output, _ = self.process.communicate()
            raise AssertionError(f"not over in {patience_seconds} s:\n{output[-4000:]}") from None
        return output

    def run(self) -> "Run":
        self.start().finish()
        return self

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def metrics(self) -> list[dict[str, Any]]:
        return rows(self.workdir / "metrics.jsonl")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        found = rows(self.workdir / "events.jsonl")
        return [row for row in found if kind in (None, row["kind"])]

    def digests(self) -> list[tuple[int, str, str]]:
        return [
            (row["step"], row["trajectories_digest"], row["params_digest"])
            for row in self.metrics()
        ]

    def manager(self) -> dict[str, Any]:
        """The record of the living manager."""
        path = self.workdir / "manager.json"
        self.wait_until(path.exists, "a manager")
        return json.loads(path.read_text())

    def servers(self) -> dict[str, int]:
        """Process ids of the rollout servers that live now, by the name of their instance."""
        joined = [e for e in self.events("joined") if not e["detail"]["reserved"]]
        living = self.processes()
        pids = {event["instance"]: event["detail"]["pid"] for event in joined}
        return {name: pid for name, pid in pids.items() if pid in living}

    def processes(self) -> dict[int, str]:
        """Whatever this run has started that still lives: process ids and command lines."""
        found = {}
        mark = f"{MARK}={self.workdir}".encode()
        for process in Path("/proc").iterdir():
            with contextlib.suppress(OSError):  # not a process, or gone meanwhile
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                command = (process / "cmdline").read_bytes()
                ours = mark in (process / "environ").read_bytes().split(b"\0")
                named = b"rlboost_jax" in command and str(self.workdir).encode() in command
                if state not in "ZX" and (ours or named):
                    found[int(process.name)] = command.replace(b"\0", b" ").decode()
        return found

    def status(self) -> dict[str, Any]:
        """The fleet as the manager sees it now; {} where none answers."""
        with contextlib.suppress(OSError, ValueError):
            record = json.loads((self.workdir / "manager.json").read_text())
            token = (self.workdir / "token").read_text()
            request = urllib.request.Request(
                f"http://{record['address']}/status", headers={"Authorization": f"Bearer {token}"}
            )
            with urllib.request.urlopen(request, timeout=5) as answer:
                return json.load(answer)
        return {}

    def serve(self, *options: str, token_file: Path | None = None) -> subprocess.Popen[str]:
        """Start a rollout server for this run, as one does from a second terminal."""
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "rlboost_jax.rollout"),
                f"--manager={self.manager()['address']}",
                f"--token_file={token_file or self.workdir / 'token'}",
                *options,
            ],
            cwd=REPOSITORY,
            env={**os.environ, MARK: str(self.workdir)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until(self, settled: Callable[[], Any], what: str) -> Any:
        """The first true value of `settled`, looked at while the run lives."""

        def settled_or_over() -> Any:
            value = settled()
            if not value and self.process is not None and self.process.poll() is not None:
                output = self.process.stdout.read() if self.process.stdout else ""
                raise AssertionError(f"the run ended before {what}:\n{output[-4000:]}")
            return value

        return wait_until(settled_or_over, what)


def wait_until(settled: Callable[[], Any], what: str) -> Any:
    """The first true value of `settled`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        value = settled()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"no {what} in {PATIENCE_SECONDS} s")


def rows(path: Path) -> list[dict[str, Any]]:
    """Objects of a JSON-lines file; a last line in the making is left out."""
    if not path.exists():
        return []
    text = path.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextlib.contextmanager
def running(workdir: Path, *overrides: str, config: Path = TINY) -> Iterator[Run]:
    """A run that is gone afterwards, with its manager, however the test ends."""
    run = Run(workdir, *overrides, config=config).start()
    try:
        yield run
    finally:
        assert run.process is not None
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()
        for pid in run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
