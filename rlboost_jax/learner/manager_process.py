"""Find the manager of a work directory, or start one, and see it off at the end.

The manager outlives its trainer: it is started in a session of its own and found again
through `<workdir>/manager.json`, so that a trainer killed in mid-step comes back to the
tokens its fleet went on producing.
"""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

START_SECONDS = 20.0
LEAVE_SECONDS = 10.0
POLL_SECONDS = 0.02


class ManagerNotStarted(RuntimeError):
    """The manager process ended, or did not listen in time."""


class ManagerProcess:
    """The manager of one run, whoever started it."""

    def __init__(self, workdir: Path, run_id: str):
        self._workdir, self._run_id = workdir, run_id
        self._child: subprocess.Popen[bytes] | None = None

    def locate(self) -> tuple[str, str]:
        """(HOST:PORT, token) of the living manager; starts one where there is none.

        Raises:
            ManagerNotStarted: with the end of its log.
        """
        return self._living() or self._start()

    def close(self) -> None:
        """Wait until it has left; tell it to go if it has not after `LEAVE_SECONDS`."""
        pid = self._pid()
        if pid is not None and not self._wait(lambda: not self._running(pid), LEAVE_SECONDS):
            self.dismiss()

    def dismiss(self) -> None:
        """Tell a living manager to send its fleet home and go, and wait until it has."""
        pid = self._pid()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if pid is None or not self._running(pid):
                return
            os.kill(pid, number)
            self._wait(lambda: not self._running(pid), LEAVE_SECONDS)

    def _pid(self) -> int | None:
        record = self._record()
        if record is None or record.get("run_id") != self._run_id or not _alive(record["pid"]):
            return None
        return int(record["pid"])

    def _running(self, pid: int) -> bool:
        if self._child is not None and self._child.pid == pid:
            return self._child.poll() is None
        return _alive(pid)

    def _record(self) -> dict | None:
        try:
            return json.loads((self._workdir / "manager.json").read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def _living(self) -> tuple[str, str] | None:
        record = self._record()
        if record is None or record.get("run_id") != self._run_id or not _alive(record["pid"]):
            return None
        token = Path(record["token_file"]).read_text().strip()
        request = urllib.request.Request(
            f"http://{record['address']}/status", headers={"Authorization": f"Bearer {token}"}
        )
        try:
            with urllib.request.urlopen(request, timeout=2):
                return record["address"], token
        except (urllib.error.URLError, OSError):
            return None

    def _start(self) -> tuple[str, str]:
        (self._workdir / "logs").mkdir(exist_ok=True)
        log_path = self._workdir / "logs" / "manager.log"
        with open(log_path, "ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "rlboost_jax.manager", f"--workdir={self._workdir}"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        child, found = self._child, None

        def settled() -> bool:
            nonlocal found
            record = self._record()
            if record is not None and record["pid"] == child.pid:
                found = self._living()
            return found is not None or child.poll() is not None

        self._wait(settled, START_SECONDS)
        if found is None:
            lines = log_path.read_text(errors="replace").strip().splitlines()[-1:]
            raise ManagerNotStarted(
                f"the manager (exit code {child.poll()}) does not listen after at most "
                f"{START_SECONDS:g} s; last words in {log_path}: {' '.join(lines) or 'none'}"
            )
        return found

    @staticmethod
    def _wait(settled: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not settled():
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True


def _alive(pid: int) -> bool:
    """Whether a process of that number runs (a zombie has ended)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        pass
    if os.path.isdir("/proc/self"):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
