"""Whether a process noted in a file still runs.

The system uses process ids again, after a restart even the same ones. Id, time of start and
what was started together belong to one process for good.
"""

import os
import subprocess
from pathlib import Path

PROGRAM = b"rlboost_jax"  # in the command line of every process of ours
HAS_PROC = os.path.isdir("/proc/self")


def start_time(pid: int) -> str:
    """When a process began, in the system's own words; "" if it has ended."""
    if HAS_PROC:
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        return "" if fields[0] in "ZX" else fields[19]  # state and start: the 3rd and the 22nd
    return _ps(pid, "lstart")


def runs(pid: int, started: str) -> bool:
    """Whether the process of ours that had this id and `start_time` still runs."""
    return started != "" and start_time(pid) == started and PROGRAM in _command(pid)


def _command(pid: int) -> bytes:
    if HAS_PROC:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return b""
    return _ps(pid, "command").encode()


def _ps(pid: int, field: str) -> str:
    """For systems without /proc."""
    shown = subprocess.run(
        ["ps", "-o", f"{field}=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip()
