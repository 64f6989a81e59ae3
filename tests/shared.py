"""What several test processes share: made by the first that wants it, read by all."""

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def made_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]
) -> Path:
    """A folder of this session, the same in all of its processes, that `make` has filled.

    The first to ask makes it while the others wait; where that fails the next one tries. It is
    nobody's to change.
    """
    base = tmp_path_factory.getbasetemp()
    session = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = session / f"shared-{name}"
    done = folder / ".done"
    with open(session / f"shared-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            number = len(list(session.glob(f"shared-{name}*")))
            if folder.exists():  # half made
                folder.rename(session / f"shared-{name}.broken-{number}")
            folder.mkdir()
            make(folder)
            done.touch()
    return folder


def measured_once(
    tmp_path_factory: pytest.TempPathFactory, name: str, measure: Callable[[], Any]
) -> Any:
    """What `measure` has returned in the first of all processes, by way of JSON."""

    def make(folder: Path) -> None:
        (folder / "measured.json").write_text(json.dumps(measure()))

    folder = made_once(tmp_path_factory, name, make)
    return json.loads((folder / "measured.json").read_text())
