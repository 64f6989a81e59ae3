"""Programs of the policy, run in a process that can do nothing but compute.

What contains them is in `sandbox_child.py`, which also finds out whether it does.
"""

import json
import os
import resource
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from rlboost_jax.rewards import sandbox_child

SECONDS: Final = 6.0  # for all tests of a program, unless its reward says otherwise
MEMORY_MB: Final = 512  # the same
OUTPUT_BYTES: Final = 256 * 2**10  # most that a program may print
_TROUBLE_BYTES: Final = 4096  # of standard error that are looked at
_SCRIPT: Final = Path(sandbox_child.__file__)
_NAMES: Final = {
    "network": "the network",
    "processes": "other processes",
    "files": "the host's files",
}


class NotContained(RuntimeError):
    """A program could do more than compute; it was not run."""


class NotStarted(RuntimeError):
    """The process of a program ended or stood still before it came to the program."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    completed: bool  # came to its end in time, without an exception or an exit of its own
    output: str
    timed_out: bool = False  # it was ended, since its time was over


def run_contained(
    program: str,
    *,
    stdin: str = "",
    seconds: float,
    memory_mb: int,
    required: bool,
    script: Path = _SCRIPT,
    most_bytes: Callable[[], int] = lambda: resource.getrlimit(resource.RLIMIT_AS)[1],
) -> Ran:
    """Run Python source; whatever it does, it is over after `seconds`.

    `completed` follows a secret that this process is given and prints last. A program that only
    exits, crashes or prints does not complete; one made to search its own interpreter for the
    secret could pretend to.

    Args:
        required: do not run it where something of `sandbox_child.py` does not hold here.
        script: `sandbox_child.py`.
        most_bytes: of memory that this process may have.

    Raises:
        NotContained
        NotStarted: nothing is known of the program, since not a line of it ran.
    """
    _check_memory(memory_mb, most_bytes())
    token = secrets.token_hex(16)
    header = json.dumps(
        {
            "limits": {
                "memory_bytes": memory_mb * 2**20,
                "cpu_seconds": max(1, int(seconds) + 1),
                "output_bytes": OUTPUT_BYTES,
            },
            "required": required,
            "program": program,
            "token": token,
        }
    ).encode()
    with (
        _file() as head,
        _file() as report,
        _file() as source,
        _file() as output,
        _file() as trouble,
    ):
        head.write(header)
        head.seek(0)
        source.write(stdin.encode(errors="surrogatepass"))
        source.seek(0)
        files = (head.fileno(), report.fileno())
        process = subprocess.Popen(
            # Not -I, which would have it ignore PYTHONHASHSEED along with all else of its kind.
            [sys.executable, "-P", "-s", "-B", str(script), *map(str, files)],
            pass_fds=files,
            stdin=source,
            stdout=output,
            stderr=trouble,
            env={"LANG": "C.UTF-8", "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"},
            cwd="/",
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        text = output.read(OUTPUT_BYTES).decode(errors="replace")
        report.seek(0)
        reported = report.read(_TROUBLE_BYTES)
        started = reported == sandbox_child.STARTED
        if code == sandbox_child.NOT_CONTAINED and not started:
            names = reported.decode(errors="replace").split(", ")
            raise NotContained(
                f"a program would reach {' and '.join(_NAMES.get(n, n) for n in names)} "
                "on this host; run on Linux 5.13 or later, x86_64 or aarch64, with Landlock and "
                "seccomp, or set rewards.sandbox to 'best_effort'"
            )
        if not started:
            trouble.seek(0)
            last = trouble.read(_TROUBLE_BYTES).decode(errors="replace").strip().rpartition("\n")[2]
            why = f"no start in {seconds:g} s" if code is None else f"exit code {code}, {last!r}"
            raise NotStarted(f"a program's process did not come to run it: {why}")
    ending = token + "\n"
    completed = code == 0 and text.endswith(ending)
    shown = text.removesuffix(ending) if completed else text
    return Ran(completed=completed, output=shown, timed_out=code is None)


def _file() -> IO[bytes]:
    """In memory where the system has that: a full disk must not be taken for a program that fails
    to print."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("rlboost-program"), "w+b")
    return tempfile.TemporaryFile()


def _check_memory(memory_mb: int, most: int) -> None:
    """Raise NotStarted where the caller's own limit is lower, which a child cannot raise."""
    if most != resource.RLIM_INFINITY and memory_mb * 2**20 > most:
        raise NotStarted(
            f"a program may take {memory_mb} MiB (memory_mb), its caller {most // 2**20} "
            "(rewards.memory_mb and its modules); lower the first or raise the second"
        )


def is_required() -> bool:
    """As the run's worker has it; without a worker, yes."""
    return os.environ.get("RLBOOST_SANDBOX", "required") != "best_effort"
