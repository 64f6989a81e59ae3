"""`events.jsonl`: one object per fleet event, appended as it happens."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from rlboost_jax.observe.json_lines import read_lines
from rlboost_jax.platform import durable
from rlboost_jax.platform.closing import Closing

FILE: Final = "events.jsonl"


class EventsWriter(Closing):
    """Only ever appends, a line at a time: a restarted manager goes on where the last ended."""

    def __init__(self, workdir: str | Path) -> None:
        path = Path(workdir) / FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        cut_off = path.exists() and _is_cut_off(path)
        self._file: IO[str] = open(path, "a", buffering=1)  # noqa: SIM115  (open until `close`)
        if cut_off:  # a kill struck in the middle of a line; end it, so that ours is whole
            self._file.write("\n")

    def write(
        self,
        *,
        time: float,
        step: int,
        kind: str,
        instance: str = "",
        detail: Mapping[str, Any] | str = "",
    ) -> None:
        """Append an event.

        Args:
            time: seconds since the epoch.
            step: the step under way; -1 before the first.
            kind: such as joined, ready, notice, lost, drained, migrated, window_closed.
        """
        event = {"time": time, "step": step, "kind": kind, "instance": instance, "detail": detail}
        self._file.write(json.dumps(event) + "\n")

    def close(self) -> None:
        self._file.close()


def _is_cut_off(path: Path) -> bool:
    """Whether the last line has no end, or may have none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 1))
            return file.read(1) not in (b"", b"\n")
    except OSError as error:
        if durable.is_lost(error):
            return True
        raise


def read_events(workdir: str | Path) -> list[dict[str, Any]]:
    """Read the events so far, in order; none if there is no file."""
    return list(read_lines(Path(workdir) / FILE))
