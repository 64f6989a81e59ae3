"""One run, with all that its processes do to files written down."""

import dataclasses
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.preloaded import built

SOURCE = Path(__file__).parent / "recorder.c"


def recorder(folder: Path) -> Path:
    """The library to preload, built there."""
    return built(SOURCE, folder)


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
        """Let each sync take so much longer from now on."""
        with open(self.environment["POWERCUT_LOCK"], "r+b") as file:
            file.seek(4)
            file.write(milliseconds.to_bytes(4, sys.byteorder))


def prepare(folder: Path, library: Path | None = None) -> Recording:
    """
    Args:
        folder: new; everything is put there.
        library: what `recorder` built before; left out: it is built there.
    """
    root, log, lock = folder.resolve() / "disk", folder.resolve() / "log", folder.resolve() / "lock"
    root.mkdir(parents=True)
    log.touch()
    lock.write_bytes(bytes(4096))
    environment = {
        "LD_PRELOAD": str(library or recorder(folder.resolve())),
        "POWERCUT_ROOT": str(root),
        "POWERCUT_LOG": str(log),
        "POWERCUT_LOCK": str(lock),
    }
    return Recording(root, log, environment)
