"""Rows of text files, read from disk as they are needed.

Each file is looked through once. What is kept of a row is where it stands and its CRC-32; no file
stays open, for there may be more of them than a process may have. A compressed file is unpacked
once, into a temporary file without a name that all of them share.
"""

import bz2
import gzip
import lzma
import os
import tempfile
import weakref
import zlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final, Literal

import numpy as np

from rlboost_jax.data.csv_rows import csv_layout
from rlboost_jax.data.json_rows import CHUNK, json_layout
from rlboost_jax.data.row import DataChanged, FileLayout, Row, names_of_first
from rlboost_jax.platform.bounded_files import Unreadable, open_regular
from rlboost_jax.platform.mistakes import ConfigError, install

TextFormat = Literal["jsonl", "csv", "tsv"]
DELIMITERS: Final = {"csv": ",", "tsv": "\t"}
MAX_UNPACKED: Final = 2**35  # bytes of all compressed files of a source together

_GZIP, _BZ2, _XZ, _ZSTD = b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"
_OTHERS: Final = {b"PK\x03\x04": "a ZIP archive; unpack it", b"PAR1": "a Parquet file"}
_BOM: Final = b"\xef\xbb\xbf"
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")  # UTF-16, and UTF-32 of one order


@dataclass(frozen=True, kw_only=True)
class _TextFile:
    """A file; `spooled`: its text is in the temporary file."""

    path: Path
    parse: Callable[[bytes], Row]
    unit: str
    spooled: bool


class TextRows:
    """Rows of text files. A row that has changed since is detected."""

    def __init__(
        self, paths: Sequence[Path], format: TextFormat, *, columns: Collection[str]
    ) -> None:
        """Look through the files. Raises ConfigError."""
        self._format, self._columns = format, columns
        self._spool: IO[bytes] | None = None
        self._files: list[_TextFile] = []
        spans: list[tuple[int, ...]] = []
        for path in paths:
            try:
                with open(open_regular(path), "rb", buffering=CHUNK) as file:
                    spans.extend(self._opened(path, file))
            except ConfigError as error:
                raise ConfigError(f"data.source: {path}: {error}") from None
            except Unreadable as error:
                raise ConfigError(f"data.source: {error}") from None
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(f"data.source: cannot read {path}: {why}") from None
        # Rows of (file, first byte, number of bytes, their CRC-32, number for a person).
        self._spans = np.array(spans, np.int64).reshape(len(spans), 5)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Row:
        number, first, size, checksum, _ = self._spans[index].tolist()
        file = self._files[number]
        text = self._read(file, first, size)
        if zlib.crc32(text) != checksum:
            raise DataChanged(
                f"data.source: {self.place(index)} is not what it was when the run was started; "
                "bring it back"
            )
        return file.parse(text)

    def place(self, index: int) -> str:
        number, *_, row = self._spans[index].tolist()
        return f"{self._files[number].path.name}, {self._files[number].unit} {row}"

    def names(self) -> Collection[str]:
        return names_of_first(self)

    def _opened(self, path: Path, file: BinaryIO) -> list[tuple[int, ...]]:
        """Spans of a file's rows."""
        magic = file.read(6)
        start = file.seek(0)
        packed = magic.startswith((_GZIP, _BZ2, _XZ, _ZSTD))
        if packed:
            file, start = self._unpacked(path, magic)
            magic = file.read(6)
        for sign, what in _OTHERS.items():
            if magic.startswith(sign):
                raise ConfigError(f"it is {what}, and not of format {self._format}")
        if magic.startswith(_WIDE):
            raise ConfigError("it is UTF-16; save it as UTF-8")
        layout = self._layout(file, start + len(_BOM) * magic.startswith(_BOM))
        number = len(self._files)
        self._files.append(
            _TextFile(path=path, parse=layout.parse, unit=layout.unit, spooled=packed)
        )
        return [
            (number, first, len(text), zlib.crc32(text), row) for first, text, row in layout.rows
        ]

    def _layout(self, file: BinaryIO, start: int) -> FileLayout:
        if self._format == "jsonl":
            return json_layout(file, start)
        delimiter = DELIMITERS[self._format]
        return csv_layout(file, start, delimiter=delimiter, columns=self._columns)

    def _unpacked(self, path: Path, magic: bytes) -> tuple[Any, int]:
        """Temporary file with the unpacked text, and where the text begins in it."""
        if self._spool is None:
            self._spool = tempfile.TemporaryFile(prefix="rlboost-rows-")  # noqa: SIM115
            weakref.finalize(self, self._spool.close)
        spool = self._spool
        start = spool.seek(0, os.SEEK_END)
        try:
            with _decompressing(path, magic) as packed:
                while chunk := packed.read(2**20):
                    spool.write(chunk)
                    if spool.tell() > MAX_UNPACKED:
                        raise ConfigError(
                            f"compressed files of a source may unpack to {MAX_UNPACKED:,} bytes "
                            "together; unpack them, and name the files"
                        )
        except (EOFError, zlib.error, lzma.LZMAError) as error:
            raise ConfigError(f"it cannot be unpacked: {error}") from None
        spool.flush()
        spool.seek(start)
        return spool, start

    def _read(self, file: _TextFile, first: int, size: int) -> bytes:
        if file.spooled:
            assert self._spool is not None
            return os.pread(self._spool.fileno(), size, first)
        try:
            with open(file.path, "rb", buffering=0) as opened:
                return os.pread(opened.fileno(), size, first)
        except OSError as error:
            raise DataChanged(
                f"{file.path} cannot be read any more: {error.strerror}; bring it back"
            ) from None


def _decompressing(path: Path, magic: bytes) -> Any:
    if magic.startswith(_GZIP):
        return gzip.open(path)
    if magic.startswith(_BZ2):
        return bz2.open(path)
    if magic.startswith(_XZ):
        return lzma.open(path)
    try:
        import pyarrow
    except ImportError:
        raise ConfigError(f"it is compressed by Zstandard; {install('hf')}") from None
    return pyarrow.input_stream(str(path), compression="zstd")
