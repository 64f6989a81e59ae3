"""Sources of a version's files: its folder, an object store, or a server.

File systems may hang: they are touched in threads only, never in the event loop that renews the
lease.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.object_store import ObjectStore
from rlboost_jax.platform.thread_calls import in_thread
from rlboost_jax.trust.credentials import Endpoint
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, FileSource, Intake, KnowingIntake, read_file
from rlboost_jax.weights.connections import Connections
from rlboost_jax.weights.download import download
from rlboost_jax.weights.stored_versions import read_stored

LEAST_FILES: Final = 4  # of a directory or a store, at a time, however few cores there are
MOST_FILES: Final = 16  # however many: memory for each is needed at once


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files, and the places of them.

    Attributes:
        place: what they are, for errors.
        directory: that has them on the trainer's host.
        url: under which a server has all of them, one behind the other.
        files: all of them, in that order.
    """

    place: str
    directory: Path
    url: str
    files: tuple[FileEntry, ...]


async def fetch(
    files: Files,
    wanted: tuple[FileEntry, ...],
    intake: KnowingIntake,
    *,
    source: str,
    server: Endpoint | None,
    counter: ByteCounter,
    connections: Connections | None = None,
    store: ObjectStore | None = None,
) -> None:
    """Bring files into an intake, verified.

    Args:
        wanted: some of the files.
        source: see `rlboost_jax.weights.pull.Puller`.
        server: of files over HTTP.
        counter: of what comes.
        connections: to the server; None: ones that end with this.
        store: that has the files, too.

    Raises:
        WeightsError: naming the first file that is missing or differs, and how.
    """
    if source not in ("auto", "directory", "http", "store"):
        raise ValueError(f"weights.source = {source!r}; use 'auto', 'directory', 'http' or 'store'")
    if source == "directory" or (
        source == "auto" and await asyncio.to_thread(_visible, files.directory, wanted)
    ):
        try:
            return await _read_all(wanted, partial(read_file, files.directory), intake, counter)
        except WeightsError:
            if source == "directory" or server is None:
                raise  # "auto" has others left to try
            wanted = intake.lacking(wanted)
    if store is not None and source in ("auto", "store"):
        try:
            return await _read_all(wanted, partial(read_stored, store), intake, counter)
        except WeightsError:
            if source == "store" or server is None:
                raise
            wanted = intake.lacking(wanted)
    if source == "store":
        raise WeightsError(f"{files.place}: weights.store cannot be opened here")
    if server is None:
        raise WeightsError(f"{files.place}: {files.directory} is not visible on this host")
    served = FileSource(
        url=files.url, files=files.files, wanted=frozenset(entry.path for entry in wanted)
    )
    async with (connections or Connections()).to(server) as (session, retries):
        await download([served], session, intake, counter, retries)


async def _read_all(
    wanted: tuple[FileEntry, ...], read: Callable[..., None], intake: Intake, counter: ByteCounter
) -> None:
    """Bring several files at a time: hashing releases the interpreter lock.

    Args:
        read: called with an entry, the intake, the counter, and an event that ends it.
    """
    loop = asyncio.get_running_loop()
    abort = threading.Event()
    at_a_time = min(MOST_FILES, max(LEAST_FILES, os.cpu_count() or 1))
    threads = ThreadPoolExecutor(at_a_time, thread_name_prefix="weights")
    reads = [loop.run_in_executor(threads, read, entry, intake, counter, abort) for entry in wanted]
    try:
        await _all_or_first_error(reads)
    finally:
        # A thread cannot be cancelled: it looks at `abort` and is gone within a chunk. Until
        # then it may write into the intake.
        abort.set()
        threads.shutdown(wait=False, cancel_futures=True)
        await in_thread(threads.shutdown)


async def _all_or_first_error(futures: Sequence[asyncio.Future[None]]) -> None:
    """Wait for all; at the first failure or a cancellation, stop the others."""
    try:
        await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()
        await asyncio.gather(*futures, return_exceptions=True)


def _visible(directory: Path, files: Sequence[FileEntry]) -> bool:
    return bool(files) and (directory / files[0].path).is_file()
