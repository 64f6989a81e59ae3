"""Rows of a data set by random access, whatever the format.

Row i is always the same one. Files are taken in the order of their names. A row that cannot be
read is found out about when it is asked for, and costs nothing but itself.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from rlboost_jax.config.errors import ConfigError

Row = Mapping[str, Any]

ENDINGS: Final = {
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


class Rows(Protocol):
    """Only the columns that were asked for need be in a row."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row:
        """Raises BrokenRow."""
        ...

    def place(self, index: int) -> str:
        """Where a person finds the row."""
        ...


def open_rows(
    source: str, format: str, *, subset: str, split: str, columns: Collection[str]
) -> Rows:
    """The rows of `data.source`, of which only `columns` are needed.

    Raises:
        ConfigError: there is no such thing, or it lacks a column.
    """
    if format == "auto":
        format = _format(source)
    if format == "huggingface":
        return HuggingFaceRows(source, subset=subset, split=split or "train", columns=columns)
    for name, value in (("subset", subset), ("split", split)):
        if value:
            raise ConfigError(
                f"data.{name} is {value!r}, and files of format {format} have none; set it to ''"
            )
    paths = _files(source, format)
    match format:
        case "jsonl":
            return JsonLines(paths)
        case "parquet":
            return ParquetRows(paths, columns=columns)
        case _:
            return ArrayRecords(paths)


def _format(source: str) -> str:
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
    path = Path(source).expanduser()
    if path.is_dir():
        found = sorted(f for f in path.iterdir() if ENDINGS.get(f.suffix) == format)
    elif "*" in path.name:
        found = sorted(path.parent.glob(path.name))
    else:
        found = [path]
    if not found or not all(f.is_file() for f in found):
        raise ConfigError(f"data.source {source!r}: no such file of format {format}; name another")
    return found


class JsonLines:
    """An object per line; blank lines are no rows. Lines are read from disk as they are needed."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = paths
        self._files = [os.open(path, os.O_RDONLY) for path in paths]
        spans = [(file, *span) for file, path in enumerate(paths) for span in _lines(path)]
        # Rows of (file, first byte, byte after the last, line number from 1).
        self._spans = np.array(spans, np.int64).reshape(len(spans), 4)

    def __len__(self) -> int:
        return len(self._spans)

    def __getitem__(self, index: int) -> Row:
        file, first, end, _ = self._spans[index].tolist()
        return _object(os.pread(self._files[file], end - first, first))

    def place(self, index: int) -> str:
        file, _, _, line = self._spans[index].tolist()
        return f"{self._paths[file].name}, line {line}"

    def __del__(self) -> None:
        for file in getattr(self, "_files", ()):
            os.close(file)


def _lines(path: Path) -> Iterator[tuple[int, int, int]]:
    """(first byte, byte after the last, line number) of each line that is not blank."""
    position, number = 0, 0
    with open(path, "rb", buffering=_CHUNK) as file:
        for line in file:
            number += 1
            if line.strip():
                yield position, position + len(line), number
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
        import pyarrow.parquet

        tables = []
        for path in paths:
            try:
                names = pyarrow.parquet.read_schema(path).names
                require(columns, names, str(path))
                tables.append(pyarrow.parquet.read_table(path, columns=sorted(columns)))
            except (OSError, pyarrow.ArrowException) as error:
                line = str(error).partition("\n")[0]
                raise ConfigError(f"data.source: cannot read {path}: {line}") from None
        self._table = pyarrow.concat_tables(tables, promote_options="permissive").combine_chunks()

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
        import grain

        self._records = grain.sources.ArrayRecordDataSource([str(path) for path in paths])

    def __len__(self) -> int:
        return len(self._records)

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
                f"data.source {source!r} is a Hugging Face data set; install rlboost-jax[hf]"
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
