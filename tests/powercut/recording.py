"""One run, with all that its processes do to files written down."""

import contextlib
import dataclasses
import os
import shlex
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping
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


def prepare(folder: Path, *, sync_ms: int = 0) -> Recording:
    """
    Args:
        folder: new; everything is put there.
        sync_ms: milliseconds that each sync takes at least.
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
        "POWERCUT_SYNC_MS": str(sync_ms),
    }
    return Recording(root, log, environment)


@contextlib.contextmanager
def recorded(recording: Recording) -> Iterator[None]:
    """Processes that are started meanwhile are recorded; this one is not."""
    before = {name: os.environ.get(name) for name in recording.environment}
    os.environ.update(recording.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
