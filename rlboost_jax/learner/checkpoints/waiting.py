"""Waiting for a library that writes into a folder, with an end: where the host had no memory for
one of its threads, what Orbax waits for may never be done, and never fail."""

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Final

LOOK_SECONDS: Final = 1.0
LOOKS: Final = 60  # in which nothing happens, before one wonders
SLOW_DISK: Final = 10**7  # bytes in a second, which may all be seen at their end only


class WritesStalled(RuntimeError):
    """Nothing is written any more, though the disk answers. Whoever writes is still waited for by
    Python at its end: this process can only be left at once."""


def wait_for_writes(
    written: Callable[[], object],
    folder: Path,
    *,
    size_bytes: int,
    look_seconds: float = LOOK_SECONDS,
    looks: int = LOOKS,
) -> None:
    """Wait until all is written; raises what `written` raises.

    A disk that hangs is waited for as long as it does: it is asked for a write of our own before
    anybody is suspected.

    Args:
        written: returns once all is written, and is called in a thread that may stay in it.
        folder: where files grow as long as anything is written.
        size_bytes: of all that is written; with more, nothing may happen for longer.
        look_seconds: between two looks at the folder.
        looks: without a change before the disk is asked, and as many after it has answered.

    Raises:
        WritesStalled
    """
    looks += int(size_bytes / SLOW_DISK / look_seconds)
    end = _in_a_thread(written)
    before, still = _sizes(folder), 0
    while not wait([end], look_seconds).done:
        now = _sizes(folder)
        still = still + 1 if now == before else 0
        before = now
        if still == looks:
            _ask_disk(folder)
        elif still == 2 * looks:
            raise WritesStalled(
                f"nothing was written into {folder} in {2 * looks * look_seconds:g} s, though the "
                "disk answers; the same command goes on from the checkpoint before"
            )
    end.result()


def _in_a_thread(call: Callable[[], object]) -> Future[None]:
    end: Future[None] = Future()

    def work() -> None:
        try:
            call()
        except BaseException as error:
            end.set_exception(error)
        else:
            end.set_result(None)

    threading.Thread(target=work, name="written", daemon=True).start()
    return end


def _sizes(folder: Path) -> dict[str, int]:
    """Bytes of all files that are there, whose number may change meanwhile."""
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
    """Returns once a byte is on the device. Raises OSError where it cannot be written."""
    with tempfile.TemporaryFile(dir=folder) as file:
        file.write(b"?")
        file.flush()
        os.fsync(file.fileno())
