"""Bring one file of a snapshot here, hashing it on the way.

The manifest bounds everything: no byte beyond the size it states is kept, and a file counts
only once its digest is right.
"""

import asyncio
import hashlib
import threading
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO, Final

import aiohttp

from rlboost_jax.backoff import backoff_seconds
from rlboost_jax.messages import FileEntry
from rlboost_jax.weights.names import WeightsError

CHUNK_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Retries:
    """How long a file is tried for.

    Attributes:
        attempts: for one file, connections that broke included.
        first_backoff_seconds: doubles with each attempt: 3 s in all.
        silence_seconds: of a connection before it counts as broken.
    """

    attempts: int = 6
    first_backoff_seconds: float = 0.1
    silence_seconds: float = 10.0


RETRIES: Final = Retries()


class ByteCounter:
    """Bytes that have come so far, of all files, in any thread."""

    def __init__(self) -> None:
        self._lock, self._total = threading.Lock(), 0

    @property
    def total(self) -> int:
        return self._total

    def add(self, count: int) -> None:
        with self._lock:
            self._total += count


class _Checked:
    """A file being written: how much of it is here, and what it hashes to so far."""

    def __init__(self, entry: FileEntry, stream: BinaryIO, source: str, counter: ByteCounter):
        self._entry, self._stream, self._source = entry, stream, source
        self._counter = counter
        self.restart()

    def restart(self) -> None:
        self._stream.seek(0)
        self._stream.truncate()
        self._digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> None:
        self.size += len(data)
        if self.size > self._entry.size:
            raise self.error(f"more than the {self._entry.size} bytes of its manifest")
        self._digest.update(data)
        self._stream.write(data)
        self._counter.add(len(data))

    def finish(self) -> None:
        self._stream.flush()
        if self.size != self._entry.size:
            raise self.error(f"{self.size} bytes, its manifest says {self._entry.size}")
        digest = self._digest.hexdigest()
        if digest != self._entry.sha256:
            raise self.error(
                f"SHA-256 {digest[:12]}…, its manifest says {self._entry.sha256[:12]}…"
            )

    def error(self, reason: str) -> WeightsError:
        return WeightsError(f"{self._entry.path} from {self._source}: {reason}")


def copy_file(
    entry: FileEntry, directory: Path, target: Path, counter: ByteCounter, abort: threading.Event
) -> None:
    """Copy a file from a directory this host can see. Blocks: call it in a thread.

    Args:
        counter: of what comes.
        abort: ends the copy when set.

    Raises:
        WeightsError: missing, unreadable, or not what the manifest says.
    """
    with target.open("wb") as stream:
        checked = _Checked(entry, stream, str(directory), counter)
        try:
            with (directory / entry.path).open("rb", buffering=0) as origin:
                while data := origin.read(CHUNK_BYTES):
                    checked.write(data)
                    if abort.is_set():
                        break
        except OSError as error:
            raise checked.error(error.strerror or str(error)) from None
        checked.finish()


async def download_file(
    entry: FileEntry,
    session: aiohttp.ClientSession,
    url: str,
    target: Path,
    counter: ByteCounter,
    retries: Retries = RETRIES,
) -> None:
    """Fetch a file by HTTP; a connection that breaks is taken up again where it broke.

    Args:
        counter: of what comes.

    Raises:
        WeightsError: refused by the server, failed `retries.attempts` times, or not what the
            manifest says.
    """
    with target.open("wb") as stream:
        checked = _Checked(entry, stream, url, counter)
        for attempt in range(retries.attempts):
            if attempt:
                first = retries.first_backoff_seconds
                await asyncio.sleep(backoff_seconds(attempt - 1, first=first))
            try:
                await _receive(checked, session, url)
                break
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                broken = f"{type(error).__name__}: {error}"
                if isinstance(error, aiohttp.ClientConnectorError):
                    broken += "; a server must reach this port as well as the manager's"
        else:
            raise checked.error(
                f"{retries.attempts} attempts failed with {checked.size} of {entry.size} bytes "
                f"here; last: {broken}"
            )
        checked.finish()


async def _receive(checked: _Checked, session: aiohttp.ClientSession, url: str) -> None:
    """Append what is missing; raises what aiohttp raises when the connection breaks."""
    # Identity: a Range counts bytes of the file itself.
    headers = {"Accept-Encoding": "identity"}
    if checked.size:
        headers["Range"] = f"bytes={checked.size}-"
    async with session.get(url, headers=headers) as response:
        status = response.status
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # the file there is shorter than its manifest says: `finish` tells
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            response.raise_for_status()
        if status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
            raise checked.error(f"HTTP {status} {response.reason}")
        if status == HTTPStatus.OK:
            checked.restart()
        async for data in response.content.iter_any():
            checked.write(data)
