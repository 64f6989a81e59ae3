"""Rows of a data set by random access, whatever the format.

Row i is always the same one. Files are taken in the order of their names. A row that cannot be
read is found out about when it is asked for, and costs nothing but itself.
"""

import glob
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, Protocol, assert_never

import numpy as np

from rlboost_jax.settings.data import DataFormat
from rlboost_jax.settings.errors import ConfigError, Mistake, install

Row = Mapping[str, Any]
FileFormat = Literal["jsonl", "parquet", "arrayrecord"]

ENDINGS: Final[Mapping[str, FileFormat]] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrayrecord": "arrayrecord",
    ".array_record": "arrayrecord",
}
_SAVED: Final = ("dataset_info.json", "dataset_dict.json")  # of `save_to_disk`
_CHUNK: Final = 2**24  # bytes read at once while lines are counted


class BrokenRow(ValueError):
    """A row is there and cannot be read; the message says why."""


class DataChanged(Mistake, RuntimeError):
    """The data of a run is not what it was when the run began."""


class Rows(Protocol):
    """Only the columns that were asked for need be in a row."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row:
        """Raises BrokenRow, and DataChanged where what was there is not any more."""
        ...

    def place(self, index: int) -> str:
        """Where a person finds the row."""
        ...


def open_rows(
    source: str, format: DataFormat, *, subset: str, split: str, columns: Collection[str]
) -> Rows:
    """The rows of `data.source`; only `columns` are needed.

    Raises:
        ConfigError: the source does not exist, or it lacks a column.
    """
    source = os.path.expanduser(source)
    kind = _format(source) if format == "auto" else format
    if kind == "huggingface":
        return HuggingFaceRows(source, subset=subset, split=split or "train", columns=columns)
    for name, value in (("subset", subset), ("split", split)):
        if value:
            raise ConfigError(
                f"data.{name} is {value!r}, and files of format {kind} have none; set it to ''"
            )
    paths = _files(source, kind)
    match kind:
        case "jsonl":
            return JsonLines(paths)
        case "parquet":
            return ParquetRows(paths, columns=columns)
        case "arrayrecord":
            return ArrayRecords(paths)
        case _:
            assert_never(kind)


def _format(source: str) -> FileFormat | Literal["huggingface"]:
    path = Path(source)
    if path.is_dir():
        if any((path / name).exists() for name in _SAVED):
            return "huggingface"
        found = {ENDINGS[f.suffix] for f in path.iterdir() if f.suffix in ENDINGS}
        if len(found) == 1:
            return found.pop()
        raise ConfigError(
            f"data.source {source!r} is a folder of {', '.join(sorted(found)) or 'no known files'};"
            " set data.format, or name files such as folder/*.jsonl"
        )
    if path.suffix in ENDINGS:
        return ENDINGS[path.suffix]
    if path.exists() or "*" in source or source.count("/") > 1 or source.startswith("."):
        raise ConfigError(f"data.source {source!r}: its ending says no format; set data.format")
    return "huggingface"


def _files(source: str, format: str) -> list[Path]:
    path = Path(source)
    if path.is_dir():
        found = sorted(f for f in path.iterdir() if ENDINGS.get(f.suffix) == format)
    elif "*" in source:
        found = sorted(f for f in map(Path, glob.glob(source, recursive=True)) if f.is_file())
    else:
        found = [path] if path.is_file() else []
    if not found:
        raise ConfigError(f"data.source {source!r}: no such file of format {format}; name another")
    return found


class JsonLines:
    """An object per line; blank lines are no rows.

    Lines are read from disk as they are needed, and no file is kept open: there may be more of
    them than a process may have. A line that is another one by then is noticed.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises ConfigError."""
        self._paths = paths
        spans: list[tuple[int, ...]] = []
        for number, path in enumerate(paths):
            try:
                with open(path, "rb", buffering=_CHUNK) as file:
                    spans.extend((number, *span) for span in _lines(file))
            except OSError as error:
                raise ConfigError(f"data.source: cannot read {path}: {error.strerror}") from None
        # Rows of (file, first byte, number of bytes, their CRC-32, line number from 1).
        self._spans = np.array(spans, np.int64).reshape(len(spans), 5)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Row:
        number, first, size, checksum, _ = self._spans[index].tolist()
        try:
            with open(self._paths[number], "rb", buffering=0) as file:
                line = os.pread(file.fileno(), size, first)
        except OSError as error:
            raise DataChanged(
                f"{self._paths[number]} cannot be read any more: {error.strerror}; bring it back"
            ) from None
        if zlib.crc32(line) != checksum:
            raise DataChanged(
                f"data.source: {self.place(index)} is not what it was when the run was started; "
                "bring it back"
            )
        return _object(line)

    def place(self, index: int) -> str:
        number, *_, line = self._spans[index].tolist()
        return f"{self._paths[number].name}, line {line}"


def _lines(file: Iterable[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """(first byte, number of bytes, their CRC-32, line number) of each line that is not blank."""
    position = 0
    for number, line in enumerate(file, 1):
        if line.strip():
            yield position, len(line), zlib.crc32(line), number
        position += len(line)


def _object(line: bytes) -> Row:
    try:
        value = json.loads(line)
    except ValueError as error:  # not UTF-8, or no JSON
        raise BrokenRow(f"no JSON: {error}") from None
    except RecursionError:
        raise BrokenRow("no JSON: nested too deeply") from None
    if not isinstance(value, dict):
        raise BrokenRow(f"JSON, but no object: {str(value)[:40]!r}")
    return value


class ParquetRows:
    """The columns that are needed, held in memory as Arrow has them."""

    def __init__(self, paths: Sequence[Path], *, columns: Collection[str]) -> None:
        try:
            import pyarrow.parquet
        except ImportError:
            raise ConfigError(
                f"data.source {str(paths[0])!r} is a Parquet file; {install('hf')}"
            ) from None
        tables = []
        for path in paths:
            try:
                names = pyarrow.parquet.read_schema(path).names
                require(columns, names, str(path))
                tables.append(pyarrow.parquet.read_table(path, columns=sorted(columns)))
            except (OSError, pyarrow.ArrowException) as error:
                line = str(error).partition("\n")[0]
                raise ConfigError(f"data.source: cannot read {path}: {line}") from None
        try:
            whole = pyarrow.concat_tables(tables, promote_options="permissive")
        except pyarrow.ArrowException as error:
            line = str(error).partition("\n")[0]
            raise ConfigError(
                f"data.source: columns of {paths[0]} differ elsewhere: {line}"
            ) from None
        self._table = whole.combine_chunks()

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Row:
        row: Row = self._table.slice(index, 1).to_pylist()[0]
        return row

    def place(self, index: int) -> str:
        return f"row {index}"


class ArrayRecords:
    """Records that are JSON objects, as text in UTF-8, read by Grain's own random access."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Raises ConfigError."""
        import grain

        try:
            self._records = grain.sources.ArrayRecordDataSource([str(path) for path in paths])
            self._num_records = len(self._records)
        except (OSError, RuntimeError, ValueError) as error:  # it does not name the file
            line = str(error).partition("\n")[0]
            names = ", ".join(path.name for path in paths)
            raise ConfigError(f"data.source: cannot read {names}: {line}") from None

    def __len__(self) -> int:
        return self._num_records

    def __getitem__(self, index: int) -> Row:
        return _object(self._records[index])

    def place(self, index: int) -> str:
        return f"record {index}"


class HuggingFaceRows:
    """A split of a folder written by `save_to_disk`, or of a data set on the hub."""

    def __init__(self, source: str, *, subset: str, split: str, columns: Collection[str]) -> None:
        try:
            import datasets
        except ImportError:
            raise ConfigError(
                f"data.source {source!r} is a Hugging Face data set; {install('hf')}"
            ) from None
        try:
            if Path(source).is_dir() and any((Path(source) / name).exists() for name in _SAVED):
                found = datasets.load_from_disk(source)
                if isinstance(found, datasets.DatasetDict):
                    if split not in found:
                        raise ConfigError(
                            f"data.source {source!r} has no split {split!r}; it has "
                            f"{', '.join(found)}"
                        )
                    found = found[split]
            else:
                found = datasets.load_dataset(source, subset or None, split=split)
        except ConfigError:
            raise
        except Exception as error:  # of many kinds: no such set, split or subset, no network
            line = str(error).partition("\n")[0]
            raise ConfigError(
                f"data.source {source!r} (subset {subset!r}, split {split!r}) cannot be loaded: "
                f"{type(error).__name__}: {line}"
            ) from None
        require(columns, found.column_names, source)
        self._rows = found.select_columns(sorted(columns))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        row: Row = self._rows[int(index)]
        return row

    def place(self, index: int) -> str:
        return f"row {index}"


def require(columns: Collection[str], present: Collection[str], source: str) -> None:
    """Raise ConfigError where a column is not there at all."""
    missing = sorted(set(columns) - set(present))
    if missing:
        raise ConfigError(
            f"data.source {source!r} has no column {', '.join(map(repr, missing))}; it has "
            f"{', '.join(map(repr, sorted(present)))}"
        )
