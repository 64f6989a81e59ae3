"""Rows of tables read by other libraries: Parquet, ArrayRecord, Hugging Face data sets."""

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

from rlboost_jax.data.columns import MissingColumns, stored_columns
from rlboost_jax.data.json_rows import json_object
from rlboost_jax.data.row import BrokenRow, Row, TableRow, names_of_first
from rlboost_jax.platform.bounded_files import Unreadable, open_regular
from rlboost_jax.platform.mistakes import ConfigError, install

MAX_TABLE: Final = 2**34  # bytes of a file's columns in memory
BATCH_ROWS: Final = 2**14
SAVED: Final = ("dataset_info.json", "dataset_dict.json")  # of `save_to_disk`


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
                with (
                    open(open_regular(path), "rb") as opened,
                    pyarrow.parquet.ParquetFile(opened) as file,
                ):
                    names = file.schema_arrow.names
                    stored = stored_columns(columns, names)
                    tables.append(_read(file, stored))
            except Unreadable as error:
                raise ConfigError(f"data.source: {error}") from None
            except MissingColumns as error:
                raise ConfigError(f"data.source {str(path)!r} has {error}") from None
            except (OSError, ValueError, pyarrow.ArrowException) as error:  # ValueError: a name
                line = str(error).partition("\n")[0]
                raise ConfigError(f"data.source: cannot read {path}: {line}") from None
        try:
            whole = pyarrow.concat_tables(tables, promote_options="permissive")
        except pyarrow.ArrowException as error:
            line = str(error).partition("\n")[0]
            raise ConfigError(
                f"data.source: columns of {paths[0]} differ elsewhere: {line}"
            ) from None
        self._table, self._names = whole.combine_chunks(), tuple(names)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> Row:
        try:
            return TableRow(self._table.slice(index, 1).to_pylist()[0])
        except UnicodeDecodeError:
            raise BrokenRow("text that is not UTF-8") from None

    def place(self, index: int) -> str:
        return f"row {index}"

    def names(self) -> Collection[str]:
        return self._names


def _read(file: Any, columns: Collection[str]) -> Any:
    """Some columns of a Parquet file as a table; few bytes may say that there are many rows."""
    import pyarrow

    batches, size = [], 0
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(columns)):
        batches.append(batch)
        size += batch.nbytes
        if size > MAX_TABLE:
            raise pyarrow.ArrowInvalid(f"more than {MAX_TABLE:,} bytes when unpacked")
    schema = batches[0].schema if batches else file.schema_arrow
    return pyarrow.Table.from_batches(batches, schema).select(list(columns))


class ArrayRecords:
    """Records that are JSON objects, as text in UTF-8, read by Grain's own random access."""

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open the files. Raises ConfigError."""
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
        return json_object(self._records[index])

    def place(self, index: int) -> str:
        return f"record {index}"

    def names(self) -> Collection[str]:
        return names_of_first(self)


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
            if Path(source).is_dir() and any((Path(source) / name).exists() for name in SAVED):
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
        try:
            stored = stored_columns(columns, found.column_names)
        except MissingColumns as error:
            raise ConfigError(f"data.source {source!r} has {error}") from None
        self._rows, self._names = found.select_columns(stored), tuple(found.column_names)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Row:
        return TableRow(self._rows[int(index)])

    def place(self, index: int) -> str:
        return f"row {index}"

    def names(self) -> Collection[str]:
        return self._names
