"""Programs of the policy, run in a process that can do nothing but compute.

What contains them is in `contained.py`, which also finds out whether it does.
"""

import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.rewards import contained

OUTPUT_BYTES: Final = 256 * 2**10  # most that a program may print
_SCRIPT: Final = Path(contained.__file__)
_NAMES: Final = {
    "network": "the network",
    "processes": "other processes",
    "files": "the host's files",
}


class NotContained(RuntimeError):
    """A program could do more than compute; it was not run."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    completed: bool  # came to its end in time, without an exception or an exit of its own
    output: str


def run_contained(
    program: str, *, stdin: str = "", seconds: float, memory_mb: int, required: bool
) -> Ran:
    """Run Python source; whatever it does, it is over after `seconds`.

    `completed` follows a secret that this process is given and prints last. A program that only
    exits, crashes or prints does not complete; one made to search its own interpreter for the
    secret could pretend to.

    Args:
        required: do not run it where something of `contained.py` does not hold here.

    Raises:
        NotContained
    """
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
        tempfile.TemporaryFile() as source,
        tempfile.TemporaryFile() as output,
        tempfile.TemporaryFile() as trouble,
    ):
        source.write(header + stdin.encode(errors="surrogatepass"))
        source.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", str(_SCRIPT), str(len(header))],
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
        if code == contained.NOT_CONTAINED:
            trouble.seek(0)
            names = trouble.read(200).decode(errors="replace").split(", ")
            raise NotContained(
                f"a program would reach {' and '.join(_NAMES.get(n, n) for n in names)} "
                "on this host; run on Linux 5.13 or later, x86_64 or aarch64, with Landlock and "
                "seccomp, or set rewards.sandbox to 'best_effort'"
            )
    ending = token + "\n"
    completed = code == 0 and text.endswith(ending)
    return Ran(completed=completed, output=text.removesuffix(ending) if completed else text)


def is_required() -> bool:
    """As the run's worker has it; without a worker, yes."""
    return os.environ.get("RLBOOST_SANDBOX", "required") != "best_effort"
