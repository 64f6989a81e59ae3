"""Columns by name or by path: `answer`, `reward_model.ground_truth`, `choices.0`.

A path leads through objects, lists and columns whose text is JSON. A name with a dot in it goes
before a path, at each level.
"""

import string
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rlboost_jax.data.row import BrokenRow, Row
from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.column_names import path_of


class MissingColumns(ConfigError):
    """Columns that are nowhere in a table, and those that are there."""


def stored_columns(columns: Collection[str], present: Collection[str]) -> list[str]:
    """Columns of a table that `columns` are or lead into. Raises MissingColumns."""
    found = {column: _stored(column, present) for column in columns}
    missing = [repr(column) for column, name in sorted(found.items()) if name is None]
    if missing:
        known = ", ".join(map(repr, sorted(present)))
        raise MissingColumns(f"no column {', '.join(missing)}; it has {known}")
    return sorted({name for name in found.values() if name is not None})


def unused_columns(columns: Collection[str], present: Collection[str]) -> list[str]:
    """Columns of a table that none of `columns` is or leads into."""
    used = {_stored(column, present) for column in columns}
    return sorted(name for name in present if name not in used)


def value_at(row: Row, column: str) -> Any:
    """Value of a column; None if it or its container has none. Raises BrokenRow."""
    name = _stored(column, row)
    if name is None:
        raise BrokenRow(f"no column {column!r} among {', '.join(map(repr, sorted(row)))}")
    inside = column[len(name) + 1 :]
    return _inside(row[name], inside.split("."), name) if inside else row[name]


def filled(template: str, row: Mapping[str, Any]) -> str:
    """Fill the fields of a template with values.

    Args:
        row: a value by the path of each field.
    """
    parts = string.Formatter().parse(template)
    return "".join(text + (str(row[path_of(name)]) if name else "") for text, name, _, _ in parts)


def decoded(text: str, place: str) -> Any:
    """Decode JSON in a text column. Raises BrokenRow."""
    try:
        return foreign_json.decode(text, place, object, halves=True)
    except Unreadable as error:
        raise BrokenRow(f"{place!r} is text and no JSON: {text[:40]!r} {error.reason}") from None


def _stored(column: str, present: Collection[str]) -> str | None:
    return next((name for name in _prefixes(column) if name in present), None)


def _prefixes(column: str) -> Iterator[str]:
    """The column, and its parts up to each dot, longest first."""
    while column:
        yield column
        column = column.rpartition(".")[0]


def _inside(value: Any, parts: list[str], place: str) -> Any:
    if not parts or value is None:
        return value
    if isinstance(value, str):
        value = decoded(value, place)
    if isinstance(value, Mapping):
        name = _stored(".".join(parts), value)
        if name is None:
            known = ", ".join(map(repr, value)) or "none"
            raise BrokenRow(f"no field {parts[0]!r} in {place!r}, which has {known}")
        return _inside(value[name], parts[name.count(".") + 1 :], f"{place}.{name}")
    if isinstance(value, list | tuple):
        if not parts[0].isdecimal() or int(parts[0]) >= len(value):
            raise BrokenRow(f"no entry {parts[0]!r} in {place!r}, a list of {len(value)}")
        return _inside(value[int(parts[0])], parts[1:], f"{place}.{parts[0]}")
    raise BrokenRow(f"no field {parts[0]!r} in {place!r}, which is {str(value)[:40]!r}")
