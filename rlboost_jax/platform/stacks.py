"""Where each thread of a process is, written down when somebody asks.

`kill -USR1 PID` asks a trainer, and so does its supervisor before it ends one that stands still.
What is in the middle of a library's code or of a system call answers as well.
"""

import faulthandler
import signal
import sys
from pathlib import Path
from typing import Final

from rlboost_jax.platform.closing import Closing

SIGNAL: Final = signal.SIGUSR1


def stacks_path(workdir: Path, process: int = 0) -> Path:
    """Return the path of the stacks file of a trainer's process."""
    return workdir / "logs" / (f"stacks-{process}.txt" if process else "stacks.txt")


def dump_when_asked() -> None:
    """Write stacks to standard error on SIGUSR1, and when the process crashes."""
    faulthandler.enable()
    faulthandler.register(SIGNAL, file=sys.__stderr__ or 2, all_threads=True)


class StacksFile(Closing):
    """Context manager that has stacks appended to a file instead of standard error."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        self._file = open(path, "a")  # noqa: SIM115  (until `close`)
        faulthandler.register(SIGNAL, file=self._file, all_threads=True)

    def close(self) -> None:
        faulthandler.register(SIGNAL, file=sys.__stderr__ or 2, all_threads=True)
        self._file.close()
