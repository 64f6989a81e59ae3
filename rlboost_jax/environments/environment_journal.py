"""Records of a batch's episodes on disk, until the batch is committed.

    journal = EnvironmentJournal(folder, run_id, batch)
    records = journal.open()            # what is there already
    await journal.keep([record, …])     # returns once it lasts

Records that arrive while the disk is busy wait for one more sync, all together. Whatever is damaged
at a file's end is lost, and asked for again.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from rlboost_jax.environments.episode_records import BatchBegun, EpisodeRecord, decode_record
from rlboost_jax.platform import durable
from rlboost_jax.platform.bounded_files import named
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.record_stream import encode_records, read_records

FOLDER: Final = "environments"
SUFFIX: Final = ".journal"


class JournalNotWritten(Mistake, RuntimeError):
    """Replies of an environment cannot be kept, so nothing may be built on them."""


class EnvironmentJournal:
    """Journal of one batch. `open` comes first; all of it in one event loop."""

    def __init__(
        self,
        folder: Path,
        run_id: str,
        batch: int,
        *,
        sync: Callable[[int], None] = os.fsync,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        """
        Args:
            folder: of all batches.
            sync: forces a file's bytes to the device.
            note: called with what was damaged.
        """
        self.path, self.run_id = folder / f"batch-{batch:08d}{SUFFIX}", run_id
        self._begun = BatchBegun(run_id=run_id, batch=batch)
        self._sync, self._note = sync, note
        self._file: int | None = None
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    def open(self) -> list[Any]:
        """Return what an earlier process of this run kept of this batch; then more can be kept.

        Raises:
            JournalNotWritten
        """
        try:
            durable.make_folder(self.path.parent)
            data = self._read()
            found = read_records(data, decode_record)
            records, good = found.records, found.good_bytes
            known = bool(records) and records[0] == self._begun
            if data and not known:
                self._note(
                    f"{self.path} is damaged at its beginning, or another run's; what it said is "
                    "asked for again"
                )
                records, good = [], 0
            if known and good < len(data):
                self._note(
                    f"{self.path}: {len(data) - good} bytes at its end are damaged; what they said "
                    "is asked for again"
                )
            if not known or good < len(data):  # by a new file: the old one may be unreadable
                durable.write(self.path, data[:good] or encode_records([self._begun]), mode=0o600)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise self._not_written(error) from None
        return records[1:]

    async def keep(self, records: Iterable[EpisodeRecord]) -> None:
        """Write records, and wait until they are durable. Raises JournalNotWritten."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((encode_records(records), future))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        await future

    def add(self, records: Sequence[EpisodeRecord]) -> None:
        """Queue records that become durable with the next that are kept."""
        future = asyncio.get_running_loop().create_future()
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._waiting.append((encode_records(records), future))

    async def close(self) -> None:
        """Wait until all is written, then close the file."""
        if self._writer is not None:
            await asyncio.wait({self._writer})
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> bytes:
        try:
            with named(self.path):
                return self.path.read_bytes()
        except FileNotFoundError:
            return b""
        except OSError as error:
            if not durable.is_lost(error):
                raise
            self._note(f"{self.path}: {error.strerror}; what it said is asked for again")
            return b""

    async def _write(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._append, b"".join(data for data, _ in group))
            except Exception as error:
                failure = self._not_written(error)
                for _, future in group:
                    if not future.done():
                        future.set_exception(failure)
                continue
            for _, future in group:
                if not future.done():
                    future.set_result(None)

    def _append(self, data: bytes) -> None:
        if self._file is None:
            raise OSError("the journal is closed")
        left = memoryview(data)
        while left:
            left = left[os.write(self._file, left) :]
        self._sync(self._file)

    def _not_written(self, error: Exception) -> JournalNotWritten:
        if self._file is not None:  # what follows a gap could not be read
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None
        why = getattr(error, "strerror", None) or str(error)
        return JournalNotWritten(
            f"{self.path} cannot be written: {why}; free the disk, and the same command goes on"
        )


def forget(folder: Path, committed: int) -> None:
    """Remove the journals of batches up to this one; what cannot be removed stays.

    They are of no more use once a checkpoint with the batch's update lasts.
    """
    for path in folder.glob(f"batch-*{SUFFIX}"):
        number = path.stem.removeprefix("batch-")
        if number.isdecimal() and int(number) <= committed:
            with contextlib.suppress(OSError):
                path.unlink()
