"""Layout of a text table's rows, with a header and commas or tabs, and their parsing.

A cell is the text that is in the file; an empty one is no value. A quoted cell may hold line ends.
"""

import csv
import functools
import io
from collections.abc import Collection, Iterator
from typing import BinaryIO, Final

from rlboost_jax.data.columns import stored_columns
from rlboost_jax.data.row import BrokenRow, FileLayout, Row
from rlboost_jax.platform.mistakes import ConfigError

MAX_CELL: Final = 2**24  # characters; a longer one is a quote that is never closed


def csv_layout(
    file: BinaryIO, start: int, *, delimiter: str, columns: Collection[str]
) -> FileLayout:
    """Find the rows from the byte `start` on, after the header.

    Raises:
        ConfigError: no header, or columns that it lacks; a quote in the wrong place, while rows
            are asked for.
    """
    csv.field_size_limit(MAX_CELL)
    records = _records(file, start, delimiter)
    _, header, _ = next(records, (0, b"", 0))
    try:
        names = _cells(header, delimiter)
    except BrokenRow as error:
        raise ConfigError(f"its header: {error}") from None
    if twice := sorted({name for name in names if name and names.count(name) > 1}):
        raise ConfigError(f"its header has {twice[0]!r} twice; rename one")
    stored_columns(columns, names)
    parse = functools.partial(_row, names=names, delimiter=delimiter)
    return FileLayout(records, parse, "line")


def _records(file: BinaryIO, start: int, delimiter: str) -> Iterator[tuple[int, bytes, int]]:
    """Records that are not blank, split as `csv` does; one may span several lines."""
    file.seek(start)
    taken: list[bytes] = []

    def lines() -> Iterator[str]:
        while line := file.readline(MAX_CELL + 1):
            taken.append(line)
            if len(line) > MAX_CELL:
                raise csv.Error(f"more than {MAX_CELL:,} bytes in a line")
            yield line.decode("utf-8", "surrogateescape")

    reader, number = csv.reader(lines(), delimiter=delimiter, strict=True), 1
    while True:
        taken.clear()
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ConfigError(
                f"line {number}: no CSV: {error}; in a quoted cell a quote is written twice"
            ) from None
        record = b"".join(taken)
        if cells:
            yield start, record, number
        start += len(record)
        number += len(taken)


def _row(record: bytes, *, names: list[str], delimiter: str) -> Row:
    cells = _cells(record, delimiter)
    if len(cells) != len(names):
        raise BrokenRow(f"{len(cells)} cells, and the header has {len(names)}")
    return {name: cell or None for name, cell in zip(names, cells, strict=True) if name}


def _cells(record: bytes, delimiter: str) -> list[str]:
    try:
        lines = io.StringIO(record.decode(), newline="\n")
        return next(csv.reader(lines, delimiter=delimiter, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise BrokenRow(f"no CSV: {error}") from None
