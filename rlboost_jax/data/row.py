"""A row of a data set, whatever its format."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from rlboost_jax.platform.mistakes import Mistake

Row = Mapping[str, Any]


class TableRow(dict[str, Any]):
    """A row of typed columns: objects in it have None for each field that the row lacks."""


class BrokenRow(ValueError):
    """A row that cannot be read; the message says why."""


class DataChanged(Mistake, RuntimeError):
    """The data of a run differs from what it was when the run began."""


class Rows(Protocol):
    """Random access to rows. Only the requested columns need be in a row."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Row:
        """Read a row. Raises BrokenRow, and DataChanged if it has changed since it was found."""
        ...

    def place(self, index: int) -> str:
        """Location of the row, for people."""
        ...

    def names(self) -> Collection[str]:
        """Names of all columns, used or not; without a schema, those of a row."""
        ...


def names_of_first(rows: Rows) -> Collection[str]:
    """Columns of the first row; none if it cannot be read."""
    try:
        return tuple(rows[0]) if len(rows) else ()
    except BrokenRow:
        return ()


class FileLayout(NamedTuple):
    """Positions of rows in a text file, and their parser.

    Attributes:
        rows: (first byte, the row's bytes, its number for a person) of each, in order.
        parse: a row from its bytes; raises BrokenRow.
        unit: what the numbers count: lines, or elements.
    """

    rows: Iterable[tuple[int, bytes, int]]
    parse: Callable[[bytes], Row]
    unit: str
