"""One run, with all that its processes do to files written down."""

import dataclasses
import os
import shlex
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parent / "recorder.c"


def recorder(folder: Path) -> Path:
    """The library to preload, built there with the compiler that CPU kernels are built with."""
    library = folder / "recorder.so"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[:1]
    flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    subprocess.run([*compiler, *flags, "-o", library, SOURCE, "-ldl"], check=True)
    return library


@dataclasses.dataclass(frozen=True)
class Recording:
    """
    Attributes:
        root: what is done below it is written down.
        log: for `operations.read_log`.
        environment: of the processes to be recorded.
    """

    root: Path
    log: Path
    environment: Mapping[str, str]

    def slow_down(self, milliseconds: int) -> None:
        """From now on each sync takes so much longer."""
        with open(self.environment["POWERCUT_LOCK"], "r+b") as file:
            file.seek(4)
            file.write(milliseconds.to_bytes(4, sys.byteorder))


def prepare(folder: Path) -> Recording:
    """
    Args:
        folder: new; everything is put there.
    """
    root, log, lock = folder.resolve() / "disk", folder.resolve() / "log", folder.resolve() / "lock"
    root.mkdir(parents=True)
    log.touch()
    lock.write_bytes(bytes(4096))
    environment = {
        "LD_PRELOAD": str(recorder(folder.resolve())),
        "POWERCUT_ROOT": str(root),
        "POWERCUT_LOG": str(log),
        "POWERCUT_LOCK": str(lock),
    }
    return Recording(root, log, environment)
