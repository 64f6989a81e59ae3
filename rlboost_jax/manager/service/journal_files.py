"""The journal on disk: one file per step under `<workdir>/journal`, gone once that is committed.

A write is complete in the kernel before the manager says anything that follows from it, so it
survives the death of the process at any instruction. It is not forced to the device: what a host
that loses power takes with it is generated again, to the same bits. Only what goes is preceded by
a sync: a segment is removed once the one that says anew what outlives a step (money, names, the
window, versions) is on the device, and so is its name. That takes long and nobody waits for it.

Outcomes of faults: an empty file is removed; a torn tail is cut off; behind a corrupt byte the rest
of that file is left aside; so is what the device cannot read (a latent sector error), and nothing
more is written to that file; a full disk ends the journal until the next step opens a file, and
the run goes on.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final

from rlboost_jax.manager.journal_entries import (
    FORMAT,
    BatchOpened,
    Entry,
    Forgotten,
    Published,
    RunOver,
    RunState,
    SegmentBegun,
    decode_entry,
)
from rlboost_jax.messages import BeginBatch
from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import named
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.record_stream import RecordReader, encode_records

SUFFIX = ".journal"
_BUFFER_BYTES: Final = 2**20

log = logging.getLogger(__name__)


class OtherFormat(Mistake):
    """A journal that this release cannot read."""


def _open_to_read(path: Path) -> IO[bytes]:
    return open(path, "rb", buffering=_BUFFER_BYTES)


class JournalFiles:
    """A run's journal: reads the segments that there are, and writes the newest.

    Args:
        folder: made where missing.
        run_id: a segment of another run is removed.
        write: as `os.write`.
        opened: opens a segment for reading.
        sync: has what a file holds last.
        later: calls a function some time, one after the other; left out: at once.

    Attributes:
        read_bytes: of the entries that were read so far.
        damages: what was found on the way that could not be read.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        write: Callable[[int, memoryview], int] = os.write,
        opened: Callable[[Path], IO[bytes]] = _open_to_read,
        sync: Callable[[Path], None] = durable.sync,
        later: Callable[[Callable[[], None]], object] = lambda job: job(),
    ) -> None:
        self._folder, self._run_id, self._to_disk = folder, run_id, write
        self._sync, self._later, self._opened = sync, later, opened
        # Complete segments → the newest step begun by then. Where a trainer went back a segment
        # may have tokens of any step up to that one, not only of the step that opened it.
        self._steps: dict[Path, int] = {}
        self._lost: list[Path] = []  # segments that cannot be read to their end
        self._path: Path | None = None  # of the segment being written
        self._file: int | None = None
        self._good = 0  # bytes of it that are whole records
        self._number = 0
        self._step = -1  # the newest begun
        # What each segment says anew, so that those before it can go.
        self._run_state: RunState | None = None
        self._published: dict[int, Published] = {}  # by version, that published last at the end
        self.read_bytes = 0
        self.damages: list[str] = []

    def check(self) -> None:
        """Remove segments of other runs. Called before `entries`, which does so too.

        Raises:
            OtherFormat: this run has a segment that another release wrote.
        """
        durable.make_folder(self._folder)
        for path in self._segments():
            with self._reader(path) as reader:
                first = next(iter(reader), None)
            if not isinstance(first, SegmentBegun):
                continue  # damaged: said when it is read
            if first.run_id != self._run_id:
                path.unlink()
            elif first.format != FORMAT:
                raise OtherFormat(
                    f"{path}: journals of format {first.format} are of another release; this "
                    f"one reads format {FORMAT}. Go on with that release, or remove "
                    f"{self._folder}: its responses are then generated again, and costs are "
                    "counted anew"
                )

    def entries(self) -> Iterator[Entry]:
        """Read all entries in order. To be iterated once, to the end, before `append`.

        One is in memory at a time, however long the journal is: the bytes of a full step are as
        many as all its tokens. `read_bytes` grows on the way, and `damages` says in the end what
        was damaged.

        The segments stay until what they hold is committed; the next step opens a new one.

        Raises:
            OtherFormat: as `check`.
        """
        self.check()
        for path in self._segments():
            before, empty = self.read_bytes, True
            with self._reader(path) as reader:
                for entry in reader:
                    empty, self.read_bytes = False, before + reader.good_bytes
                    self._note([entry])
                    yield entry
            self._number = int(path.name.split("-")[0])
            if reader.is_lost:
                self.damages.append(f"{path.name}: {reader.damage}")
                self._lost.append(path)
                continue
            if empty:  # a power cut took all of it, or it is another's
                self.damages.append(f"{path.name}: {reader.damage or 'empty'}")
                path.unlink()
                continue
            if reader.damage:
                self.damages.append(f"{path.name}: {reader.damage}")
                os.truncate(path, reader.good_bytes)
            self._steps[path] = self._step
        newest = next(reversed(self._steps), None)
        # Nothing is appended to a segment that comes before a partly lost one: the new entries
        # would be read first, as if they were older.
        if newest is not None and not any(path > newest for path in self._lost):
            self._path = newest
            self._steps.pop(self._path)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            self._good = self._path.stat().st_size

    def read(self) -> tuple[list[Entry], list[str]]:
        """Read all entries at once, and the damage found, of a journal known to be short."""
        return list(self.entries()), self.damages

    def size(self) -> int:
        """Bytes of all segments."""
        return sum(path.stat().st_size for path in self._segments())

    def append(self, entries: Sequence[Entry]) -> str:
        """Write entries; returns "" or why that failed. Never raises an error of the disk."""
        problems = [self._append(part) for part in _by_segment(entries)]
        return next(filter(None, problems), "")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _append(self, part: Sequence[Entry]) -> str:
        """Write the entries of one segment; returns "" or why that failed."""
        try:
            if isinstance(part[0], BatchOpened):
                self._open(part[0].begin)
            self._note(part)  # first: the next segment says it even if this one cannot
            try:
                self._write(part)
            finally:
                self._clean_up(part)
        except OSError as error:
            self._abandon()
            return f"{error.strerror or error}; tokens from here on are not kept until a step opens"
        return ""

    @contextlib.contextmanager
    def _reader(self, path: Path) -> Iterator[RecordReader[Entry]]:
        """Open a segment. Raises OSError if the file cannot be read now."""
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(self._opened(path))
            except OSError as error:
                if not durable.is_lost(error):
                    raise
                yield RecordReader(_raising(error), 1, decode_entry)
            else:
                with named(path):
                    size = os.fstat(file.fileno()).st_size
                    yield RecordReader(file.read, size, decode_entry)

    def _segments(self) -> list[Path]:
        """Segment files in the order in which they were begun."""
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(SUFFIX))
        return [self._folder / name for name in names]

    def _open(self, begin: BeginBatch) -> None:
        """Begin a segment with everything from earlier ones that still holds."""
        self.close()
        if self._path is not None:
            self._steps[self._path], self._path = self._step, None
        self._number += 1
        self._step = max(self._step, begin.batch)
        path = self._folder / f"{self._number:08d}-step-{begin.batch}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._file, self._good = os.open(path, flags, 0o600), 0
        self._keep_published(begin)
        published = self._published.values()
        states = (SegmentBegun(run_id=self._run_id), self._run_state, *published)
        try:
            self._write([entry for entry in states if entry is not None])
        except OSError:  # what stands in for those before it has to be there as a whole
            path.unlink(missing_ok=True)
            raise
        self._path = path

    def _keep_published(self, begin: BeginBatch) -> None:
        """Keep the newest version and those that open batches are sampled from.

        With a lag of k, the oldest batch beside it is k before it, and is k behind itself.
        """
        newest = next(reversed(self._published), -1)
        oldest = 2 * begin.version - begin.batch
        self._published = {
            version: entry
            for version, entry in self._published.items()
            if version == newest or oldest <= version < newest
        }

    def _write(self, entries: Iterable[Entry]) -> None:
        if self._file is None:
            return  # abandoned until a step opens a segment
        data = encode_records(entries)
        left = memoryview(data)
        while left:
            left = left[self._to_disk(self._file, left) :]
        self._good += len(data)

    def _abandon(self) -> None:
        """Stop writing this segment: entries after a gap could not be read."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # else the reader finds the torn record itself
                os.ftruncate(self._file, self._good)
        self.close()

    def _note(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            match entry:
                case RunState():
                    self._run_state = entry
                case Published():
                    self._published.pop(entry.manifest.version, None)
                    self._published[entry.manifest.version] = entry
                case BatchOpened():
                    self._step = max(self._step, entry.begin.batch)

    def _clean_up(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            match entry:
                case Forgotten(committed=committed):
                    old = [p for p, step in self._steps.items() if step <= committed]
                    if self._path is not None:
                        old, self._lost = [*self._lost, *old], []
                    self._remove(old)
                case RunOver():
                    self.close()
                    for path in self._segments():
                        path.unlink(missing_ok=True)
                    self._steps.clear()
                    self._path = None

    def _remove(self, paths: Sequence[Path]) -> None:
        """Remove segments, once the newest one, which repeats what still holds, is durable."""
        newest = self._path or next(reversed(self._steps), None)
        paths = [path for path in paths if path != newest]
        if not paths or newest is None:
            return
        for path in paths:
            self._steps.pop(path, None)

        def remove() -> None:
            try:
                self._sync(newest)
                durable.sync_folder(self._folder)
                for path in paths:
                    path.unlink(missing_ok=True)
            except OSError as error:  # the next manager reads them, which does no harm
                log.warning("%d old journals stay: %s", len(paths), error)

        self._later(remove)


def _raising(error: OSError) -> Callable[[int], bytes]:
    def read(size: int) -> bytes:
        raise error

    return read


def _by_segment(entries: Sequence[Entry]) -> Sequence[Sequence[Entry]]:
    """Split entries into runs for one segment each: a `BatchOpened` begins one."""
    if BatchOpened not in map(type, entries):  # nearly always, and asked at every event
        return [entries] if entries else []
    parts: list[list[Entry]] = []
    for entry in entries:
        if isinstance(entry, BatchOpened) or not parts:
            parts.append([])
        parts[-1].append(entry)
    return parts
