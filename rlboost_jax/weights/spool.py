"""A folder for the files of one snapshot on its way in, and gone afterwards.

It is in memory where the host offers that. A lock says that it is in use; the lock ends with its
process, and then the next process of the same user that needs a folder removes it, or the local
provider, which has started it. Anything else of that name, among the folders of all users, is
skipped and never waited for.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

PREFIX: Final = "rlboost-spool-"
MEMORY_FOLDER: Final = Path("/dev/shm")
# Flags for a name that anyone could have given to anything.
_FOLDER_ONLY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def new_folder(parent: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def lock_folder(descriptor: int) -> None:
    """Lock an open folder. Raises OSError where there are no locks."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


@contextlib.asynccontextmanager
async def spooled(
    folder: Path | None, num_bytes: int, spool: "Spool | None" = None
) -> AsyncIterator[Path]:
    """Provide a folder for this process, removed afterwards; killed processes' folders go too.

    Args:
        folder: to make it in; None takes memory where there is room, else the temporary folder.
        num_bytes: that will be in it.

    Raises:
        OSError: it cannot be made or locked.
    """
    spool = spool or Spool()
    # A thread that has begun cannot be cancelled: the only one here makes, then removes.
    thread = ThreadPoolExecutor(1, thread_name_prefix="spool")
    loop = asyncio.get_running_loop()
    try:
        yield await loop.run_in_executor(thread, spool.make, folder, num_bytes)
    finally:
        removed = loop.run_in_executor(thread, spool.remove)
        thread.shutdown(wait=False)
        await removed


class Spool:
    """A locked folder. The lock ends with the process, and then anyone may remove it.

    Args:
        make: a new folder in the given one.
        lock: the open folder, as its own process does it.
    """

    def __init__(
        self,
        make: Callable[[Path], Path] = new_folder,
        lock: Callable[[int], None] = lock_folder,
    ) -> None:
        self._make, self._take = make, lock
        self._path: Path | None = None
        self._lock: int | None = None

    def make(self, folder: Path | None, num_bytes: int) -> Path:
        parent = folder or _roomiest(num_bytes)
        _remove_orphans_of(parent)
        while self._path is None:
            path = self._make(parent)
            self._lock = self._locked(path)
            if self._lock is not None:
                self._path = path
        return self._path

    def remove(self) -> None:
        if self._path is not None:
            shutil.rmtree(self._path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)

    def _locked(self, path: Path) -> int | None:
        """Lock a new folder; None if another process removed it as an orphan first."""
        try:
            lock = os.open(path, _FOLDER_ONLY)
        except FileNotFoundError:
            return None
        kept = False
        try:
            self._take(lock)
            kept = path.exists()
        finally:
            if not kept:
                os.close(lock)
        return lock if kept else None


def remove_orphans() -> None:
    """Remove what killed processes have left: each may hold the memory of a snapshot."""
    for parent in (MEMORY_FOLDER, Path(tempfile.gettempdir())):
        _remove_orphans_of(parent)


def _remove_orphans_of(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*"):
        _remove_if_orphaned(left)


def _roomiest(num_bytes: int) -> Path:
    """Folder in memory if the snapshot fits twice (spool and arrays), else a temporary one."""
    writable = os.access(MEMORY_FOLDER, os.W_OK)
    if writable and shutil.disk_usage(MEMORY_FOLDER).free > 2 * num_bytes:
        return MEMORY_FOLDER
    return Path(tempfile.gettempdir())


def _remove_if_orphaned(spool: Path) -> None:
    """Remove a spool whose lock is free: its process has ended, however that happened."""
    try:
        lock = os.open(spool, _FOLDER_ONLY)
    except OSError:
        return  # gone meanwhile, another user's, or no folder
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            return  # which only root could have opened
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(spool, ignore_errors=True)
    except BlockingIOError:
        return  # in use
    finally:
        os.close(lock)
