"""Files of the local provider on its servers' processes, for the next manager to find.

`<workdir>/servers/<name>` is one JSON object: nonce, process id and that process's start time.
Ids are used again by the system; with the start time they mean one process for good. Nothing is
synced: a power cut ends the processes that the notes are of.
"""

import contextlib
import json
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.platform import foreign_json, process_liveness
from rlboost_jax.platform.bounded_files import read_text

MOST_BYTES: Final = 2**16  # of a note

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunningServer:
    """A running server."""

    nonce: str
    pid: int
    descriptor: int  # of its process: readable once it has ended


class ServerFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob("*"))

    def write(self, name: str, nonce: str, pid: int) -> None:
        """Write a server's file. Without one the server works, but no later manager finds it."""
        note = {"nonce": nonce, "pid": pid, "started": process_liveness.start_time(pid)}
        try:
            self._folder.mkdir(exist_ok=True)
            (self._folder / name).write_text(json.dumps(note) + "\n")
        except OSError as error:
            log.warning("no record of %s: %s; no later manager will find it", name, error)

    def remove(self, name: str) -> None:
        with contextlib.suppress(OSError):  # a file about what has ended does no harm
            (self._folder / name).unlink(missing_ok=True)

    def find(self, name: str) -> RunningServer | None:
        """Server of a file; if it does not run, the file is removed and None returned.

        One of a program from before there were nonces is ended: it cannot make itself understood.
        """
        try:
            text = read_text(self._folder / name, MOST_BYTES)
            nonce, pid, started = _parse(text)
            descriptor = os.pidfd_open(pid)
        except (OSError, ValueError, TypeError, OverflowError, AttributeError):
            # The process is gone, the file is wrong, or this system has no pidfd.
            self.remove(name)
            return None
        if nonce and process_liveness.runs(pid, started):
            return RunningServer(nonce, pid, descriptor)
        if process_liveness.runs(pid, started):
            log.warning("%s was started by an earlier version of this program: it is ended", name)
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        os.close(descriptor)
        self.remove(name)
        return None


def _parse(text: str) -> tuple[str, int, str]:
    """Nonce, process id, start time; the nonce is "" in a file of an early release.

    Raises:
        ValueError: it is neither.
    """
    if not text.startswith("{"):
        pid, started = text.split(maxsplit=1)
        return "", int(pid), started.strip()
    note = foreign_json.decode(text, "a note", dict)
    return str(note.get("nonce", "")), int(note.get("pid", 0)), str(note.get("started", ""))
