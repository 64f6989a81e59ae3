"""Files being fetched to this host's disk, and their expected sizes and digests.

Sizes and digests are known beforehand and bound everything: no byte beyond a size is kept, and a
file counts only once its digest is right.
"""

import asyncio
import bisect
import hashlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.trust.snapshot_names import WeightsError

CHUNK_BYTES: Final = 2**20


class ByteCounter:
    """Bytes received so far, of all files; may be used in any thread."""

    def __init__(self) -> None:
        self._lock, self._total = threading.Lock(), 0

    @property
    def total(self) -> int:
        return self._total

    def add(self, count: int) -> None:
        with self._lock:
            self._total += count


@dataclass(frozen=True, kw_only=True)
class FileSource:
    """Files that a URL serves one behind the other, as one string of bytes.

    Attributes:
        files: all of them, in their order.
        wanted: paths of those to fetch.
    """

    url: str
    files: tuple[FileEntry, ...]
    wanted: Collection[str]


def check_file(entry: FileEntry, path: Path, origin: str) -> None:
    """Compare a file that is here with its entry. Blocks: call it in a thread.

    Raises:
        WeightsError: it has another size or digest.
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
        size = stream.tell()
    if size != entry.size:
        raise _error(entry, origin, f"{size} bytes, its manifest says {entry.size}")
    if digest != entry.sha256:
        raise _error(
            entry, origin, f"SHA-256 {digest[:12]}…, its manifest says {entry.sha256[:12]}…"
        )


def copy_file(
    directory: Path, entry: FileEntry, target: Path, counter: ByteCounter, abort: threading.Event
) -> None:
    """Copy a file from a directory this host can see. Blocks: call it in a thread.

    Args:
        counter: of what comes.
        abort: ends the copy when set.

    Raises:
        WeightsError: missing, unreadable, or not what the manifest says.
    """
    try:
        with (directory / entry.path).open("rb", buffering=0) as file:
            blocks = iter(lambda: file.read(CHUNK_BYTES), b"")
            keep_file(entry, blocks, target, counter, abort, str(directory))
    except OSError as error:
        raise _error(entry, str(directory), error.strerror or str(error)) from None


def keep_file(
    entry: FileEntry,
    blocks: Iterable[bytes],
    target: Path,
    counter: ByteCounter,
    abort: threading.Event,
    origin: str,
) -> None:
    """Write the bytes of a file as they come, and check it.

    Args:
        counter: of what comes.
        abort: ends it when set.
        origin: of the bytes, for the error.

    Raises:
        WeightsError: it is not what the manifest says.
        OSError: of this host's disk, or of whatever makes the blocks.
    """
    size = 0
    with target.open("wb") as stream:
        for data in blocks:
            if abort.is_set():
                return
            size += len(data)
            if size > entry.size:
                reason = f"more than the {entry.size} bytes of its manifest"
                raise _error(entry, origin, reason)
            stream.write(data)
            counter.add(len(data))
    check_file(entry, target, origin)


class ArrivingFiles:
    """The wanted files of a source on this host's disk, checked as they become complete."""

    def __init__(self, source: FileSource, folder: Path, threads: ThreadPoolExecutor) -> None:
        self.url, self._folder, self._threads = source.url, folder, threads
        self._entries = source.files
        self._begins = [0, *itertools.accumulate(entry.size for entry in source.files)]
        self._checks: deque[asyncio.Future[None]] = deque()
        self._missing: dict[int, int] = {}  # bytes, by number of a file
        self._open: dict[int, int] = {}  # descriptors
        for number, entry in enumerate(source.files):
            if entry.path in source.wanted:
                self._missing[number] = entry.size
                self._came(number, 0)

    def gaps(self) -> list[tuple[int, int]]:
        """Byte ranges still to fetch, as long as possible."""
        found: list[tuple[int, int]] = []
        for number in self._missing:
            begin, end = self._begins[number], self._begins[number + 1]
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], end)
            else:
                found.append((begin, end))
        return found

    def write(self, at: int, data: memoryview) -> None:
        """Write received bytes at offset `at` of the source."""
        number = bisect.bisect_right(self._begins, at) - 1
        while data:
            size = min(len(data), self._begins[number + 1] - at)
            if size:
                os.pwrite(self._descriptor(number), data[:size], at - self._begins[number])
                self._came(number, size)
            number, at, data = number + 1, at + size, data[size:]

    def raise_if_wrong(self) -> None:
        """Raise WeightsError if a complete file differs from its entry."""
        while self._checks and self._checks[0].done():
            self._checks.popleft().result()

    async def checked(self) -> None:
        """Wait for all running hashes. Raises WeightsError at the first wrong file."""
        while self._checks:
            await self._checks.popleft()

    def close(self) -> None:
        for check in self._checks:
            if not check.cancel() and not check.cancelled():
                check.exception()  # another file was wrong, too
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def _came(self, number: int, size: int) -> None:
        self._missing[number] -= size
        if not self._missing[number]:
            os.close(self._descriptor(number))
            del self._open[number]
            entry = self._entries[number]
            self._checks.append(
                asyncio.get_running_loop().run_in_executor(
                    self._threads, check_file, entry, self._folder / entry.path, self.url
                )
            )

    def _descriptor(self, number: int) -> int:
        if number not in self._open:
            path = self._folder / self._entries[number].path
            self._open[number] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return self._open[number]


def _error(entry: FileEntry, origin: str, reason: str) -> WeightsError:
    return WeightsError(f"{entry.path} from {origin}: {reason}")
