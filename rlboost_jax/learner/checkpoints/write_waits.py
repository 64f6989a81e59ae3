"""Bounded wait for a library that writes into a folder.

If the host had no memory for one of TensorStore's threads, what Orbax waits for may never be done,
and never fail.
"""

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final, TypeVar

from rlboost_jax.platform.disk_thread import SLOW_DISK

Result = TypeVar("Result")

LOOK_SECONDS: Final = 1.0
LOOKS: Final = 60  # in which nothing happens, before one wonders


class WritesStalled(RuntimeError):
    """Nothing is written any more, though the disk answers.

    Python still waits for Orbax's thread when it ends, so this process can only be left at once.
    """


def wait_for_writes(
    write: Callable[[], Result],
    folder: Path,
    *,
    size_bytes: int,
    grown: Callable[[], None] = lambda: None,
    look_seconds: float = LOOK_SECONDS,
    looks: int = LOOKS,
) -> Result:
    """Call a function that writes, or waits for writes; returns or raises as it does.

    A disk that hangs is waited for here as long as it does: it is asked for a write of our own
    before anybody is suspected. The thread that this is called in is watched (`DiskThread`).

    Args:
        write: called in a thread of its own, which may stay in it.
        folder: where files grow as long as anything is written.
        size_bytes: of all that is written; with more, nothing may happen for longer.
        grown: called whenever something was written since the last look, or the disk has answered.
        look_seconds: between two looks at the folder.
        looks: without a change before the disk is asked, and as many after it has answered.

    Raises:
        WritesStalled
    """
    looks += int(size_bytes / SLOW_DISK / look_seconds)
    end = _in_a_thread(write)
    before, still = sizes(folder), 0
    while not wait([end], look_seconds).done:
        now = sizes(folder)
        still = still + 1 if now == before else 0
        before = now
        if not still:
            grown()
        if still == looks:
            _ask_disk(folder)
            grown()
        elif still == 2 * looks:
            raise WritesStalled(
                f"nothing was written into {folder} in {2 * looks * look_seconds:g} s, though the "
                "disk answers; the same command goes on from the checkpoint before"
            )
    return end.result()


def _in_a_thread(call: Callable[[], Result]) -> Future[Result]:
    """Run a call in a daemon thread: at exit Python would wait for an executor's thread."""
    end: Future[Result] = Future()

    def work() -> None:
        try:
            end.set_result(call())
        except BaseException as error:  # whatever it is, it is raised where it is waited for
            end.set_exception(error)

    threading.Thread(target=work, name="write", daemon=True).start()
    return end


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file present; files may come and go meanwhile."""
    sizes = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            try:
                sizes[path] = os.stat(path).st_size
            except FileNotFoundError:
                sizes[path] = -1
    return sizes


def _ask_disk(folder: Path) -> None:
    """Write a byte and wait until it is on the device. Raises OSError if that fails."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")
        file.flush()
        os.fsync(file.fileno())
