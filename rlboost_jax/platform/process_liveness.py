"""Whether a process noted in a file still runs, and which processes end with which.

The system uses process ids again, after a restart even the same ones. Id, time of start and
what was started together belong to one process for good.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
from datetime import UTC, datetime
from email.utils import parsedate
from pathlib import Path

PROGRAM = b"rlboost_jax"  # in the command line of every process of ours
PROC = Path("/proc")  # of Linux
HAS_PROC = (PROC / "self").is_dir()

# Where there is no /proc, ps adds the time since the last start of the system to when that was.
# It rounds both anew at each call, so that one process has begun a second sooner or later.
PS_TOLERANCE_SECONDS = 2
_OF_BOOT = "@"  # stands between what /proc counts from the system's start and which start that was
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def start_time(pid: int, proc: Path = PROC) -> str:
    """Return when a process began, in the system's own words; "" if it has ended.

    Args:
        proc: folder in which the system lists processes; without it `ps` is asked.
    """
    if (proc / "self").is_dir():
        try:
            fields = (proc / f"{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return ""
        # State and start are the 3rd and the 22nd.
        return "" if fields[0] in "ZX" else fields[19] + _boot(proc)
    return _ps(pid, "lstart")


def is_stopped(pid: int, proc: Path = PROC) -> bool:
    """Whether a signal or a debugger keeps a process from running; False where unknown."""
    try:
        return (proc / f"{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


def runs(pid: int, started: str, proc: Path = PROC) -> bool:
    """Whether the process that had this id and `start_time` still runs."""
    return same_start(start_time(pid, proc), started) and PROGRAM in _command(pid, proc)


def same_start(one: str, other: str) -> bool:
    """Whether two values of `start_time` for an id are one process's; they may differ in detail."""
    if one == other:
        return one != ""
    if (_OF_BOOT in one) != (_OF_BOOT in other):  # one is of a release that did not say
        return bool(one) and one.partition(_OF_BOOT)[0] == other.partition(_OF_BOOT)[0]
    first, second = _seconds(one), _seconds(other)
    if first is None or second is None:  # of /proc, which counts from the system's start, exactly
        return False
    return abs(first - second) <= PS_TOLERANCE_SECONDS


def end_with_parent(parent: int) -> bool:
    """Have the system kill this process when its parent ends (Linux only).

    Returns False if the parent, which had that id, has ended already.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    return os.getppid() == parent


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end (Linux only)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # not Linux
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _boot(proc: Path) -> str:
    """Identify the system's start: after a power cut ids and times may be the same."""
    try:
        return _OF_BOOT + (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _seconds(started: str) -> float | None:
    """Parse the seconds since 1970 from the output of ps; None for anything else."""
    date = parsedate(started)  # in English, which `strptime` reads in some locales only
    try:
        return None if date is None else datetime(*date[:6], tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _command(pid: int, proc: Path) -> bytes:
    if (proc / "self").is_dir():
        try:
            return (proc / f"{pid}/cmdline").read_bytes()
        except OSError:
            return b""
    return _ps(pid, "command").encode()


def _ps(pid: int, field: str) -> str:
    """Ask ps for a field, on systems without /proc.

    Words and hours are the same in every locale and time zone.

    Whole lines (`-ww`): else they end where a terminal would, before what names a process.
    """
    shown = subprocess.run(
        ["ps", "-ww", "-o", f"{field}=", "-p", str(pid)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
    )
    return shown.stdout.strip()
