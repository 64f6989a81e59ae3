"""Files being fetched into this process's memory, and their expected sizes and digests.

Sizes and digests are known beforehand and bound everything: no byte beyond a size is kept, and a
file counts only once its digest is right.
"""

import asyncio
import bisect
import hashlib
import itertools
import threading
from collections import deque
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rlboost_jax.messages import FileEntry
from rlboost_jax.trust.snapshot_names import WeightsError

CHUNK_BYTES: Final = 2**20
MOST_UNCHECKED_BYTES: Final = 2**27  # two of the largest files


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


class Intake(Protocol):
    """What takes files that arrive: gives room for each, and is told which are right."""

    def room(self, entry: FileEntry) -> memoryview:
        """Memory for all bytes of a file. Called once for each attempt to bring it."""
        ...

    def verified(self, entry: FileEntry) -> None:
        """Take a file whose bytes are all there and right. Called once for each, in any thread."""
        ...


class KnowingIntake(Intake, Protocol):
    """An intake that knows what it has."""

    def lacking(self, files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
        """Return those of some files that were not verified."""
        ...


class FilesInMemory:
    """An intake that keeps files as they are.

    Attributes:
        files: the bytes of each, by its path; right only once the fetch has returned.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self._verified: set[str] = set()

    def room(self, entry: FileEntry) -> memoryview:
        self.files[entry.path] = bytearray(entry.size)
        return memoryview(self.files[entry.path])

    def verified(self, entry: FileEntry) -> None:
        self._verified.add(entry.path)

    def lacking(self, files: Iterable[FileEntry]) -> tuple[FileEntry, ...]:
        return tuple(entry for entry in files if entry.path not in self._verified)


def read_file(
    directory: Path, entry: FileEntry, intake: Intake, counter: ByteCounter, abort: threading.Event
) -> None:
    """Bring a file from a directory this host can see. Blocks: call it in a thread.

    Args:
        counter: of what comes.
        abort: ends it when set.

    Raises:
        WeightsError: missing, unreadable, or not what its list says.
    """
    try:
        with (directory / entry.path).open("rb", buffering=0) as file:
            blocks = iter(lambda: file.read(CHUNK_BYTES), b"")
            take_file(entry, blocks, intake, counter, abort, str(directory))
    except OSError as error:
        raise _error(entry, str(directory), error.strerror or str(error)) from None


def take_file(
    entry: FileEntry,
    blocks: Iterable[bytes],
    intake: Intake,
    counter: ByteCounter,
    abort: threading.Event,
    origin: str,
) -> None:
    """Take the bytes of a file as they come, and check them.

    Args:
        counter: of what comes.
        abort: ends it when set.
        origin: of the bytes, for the error.

    Raises:
        WeightsError: it is not what its list says.
        OSError: of whatever makes the blocks.
    """
    size, room = 0, intake.room(entry)
    for data in blocks:
        if abort.is_set():
            return
        if size + len(data) > entry.size:
            raise _error(entry, origin, f"more than the {entry.size} bytes that its list says")
        room[size : size + len(data)] = data
        size += len(data)
        counter.add(len(data))
    _settle(entry, room[:size], intake, origin)


def _settle(entry: FileEntry, room: memoryview, intake: Intake, origin: str) -> None:
    """Check the bytes of a whole file, and hand it over. Blocks."""
    check(entry, room, origin)
    intake.verified(entry)


def check(entry: FileEntry, data: memoryview, origin: str) -> None:
    """Compare bytes with a file's entry. Blocks: call it in a thread.

    Raises:
        WeightsError: they have another size or digest.
    """
    if len(data) != entry.size:
        raise _error(entry, origin, f"{len(data)} bytes, its list says {entry.size}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry.sha256:
        raise _error(entry, origin, f"SHA-256 {digest[:12]}…, its list says {entry.sha256[:12]}…")


class ArrivingFiles:
    """The wanted files of a source on their way, checked as they become complete."""

    def __init__(self, source: FileSource, intake: Intake, threads: ThreadPoolExecutor) -> None:
        self.url, self._intake, self._threads = source.url, intake, threads
        self._entries = source.files
        self._begins = [0, *itertools.accumulate(entry.size for entry in source.files)]
        self._checks: deque[asyncio.Future[None]] = deque()
        self._unchecked_bytes = 0
        self._missing: dict[int, int] = {}  # bytes, by number of a file
        self._rooms: dict[int, memoryview] = {}
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
        """Take received bytes at offset `at` of the source."""
        number = bisect.bisect_right(self._begins, at) - 1
        while data:
            begin = self._begins[number]
            size = min(len(data), self._begins[number + 1] - at)
            if size:
                self._room(number)[at - begin : at - begin + size] = data[:size]
                self._came(number, size)
            number, at, data = number + 1, at + size, data[size:]

    def raise_if_wrong(self) -> None:
        """Raise WeightsError if a complete file differs from its entry."""
        while self._checks and self._checks[0].done():
            self._checks.popleft().result()

    async def caught_up(self) -> None:
        """Wait while more than `MOST_UNCHECKED_BYTES` wait for their hash or to be taken."""
        while self._unchecked_bytes > MOST_UNCHECKED_BYTES:
            if running := [check for check in self._checks if not check.done()]:
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.sleep(0)  # what counts them runs in the next turn of the loop

    async def checked(self) -> None:
        """Wait for all running hashes. Raises WeightsError at the first wrong file."""
        while self._checks:
            await self._checks.popleft()

    def close(self) -> None:
        for check in self._checks:
            if not check.cancel() and not check.cancelled():
                check.exception()  # another file was wrong, too
        self._rooms.clear()

    def _came(self, number: int, size: int) -> None:
        self._missing[number] -= size
        if not self._missing[number]:
            entry, room = self._entries[number], self._room(number)
            del self._rooms[number]
            check = asyncio.get_running_loop().run_in_executor(
                self._threads, _settle, entry, room, self._intake, self.url
            )
            self._checks.append(check)
            self._unchecked_bytes += entry.size
            check.add_done_callback(lambda _: self._settled(entry.size))

    def _settled(self, size: int) -> None:
        self._unchecked_bytes -= size

    def _room(self, number: int) -> memoryview:
        if number not in self._rooms:
            self._rooms[number] = self._intake.room(self._entries[number])
        return self._rooms[number]


def _error(entry: FileEntry, origin: str, reason: str) -> WeightsError:
    return WeightsError(f"{entry.path} from {origin}: {reason}")
