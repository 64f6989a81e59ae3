"""A row of a data set, whatever it was read from."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple, Protocol

from rlboost_jax.settings.errors import Mistake

Row = Mapping[str, Any]


class TableRow(dict[str, Any]):
    """A row of typed columns: objects in it have None for each field that the row lacks."""


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

    def names(self) -> Collection[str]:
        """The columns that there are, used or not; of files without a schema those of a row."""
        ...


def names_of_first(rows: Rows) -> Collection[str]:
    """The columns of the first row, none where it cannot be read."""
    try:
        return tuple(rows[0]) if len(rows) else ()
    except BrokenRow:
        return ()


class Layout(NamedTuple):
    """How rows stand in a text file.

    Attributes:
        rows: (first byte, the row's bytes, its number for a person) of each, in order.
        parse: a row from its bytes; raises BrokenRow.
        unit: what the numbers count: lines, or elements.
    """

    rows: Iterable[tuple[int, bytes, int]]
    parse: Callable[[bytes], Row]
    unit: str
