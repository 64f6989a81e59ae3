"""How settings name columns of a data set: by name, or by a path such as `extra_info.index`."""

import re
from typing import Final

_SEGMENT: Final = r"[^\W\d](?:[\w -]*\w)?"
_FIELD: Final = re.compile(rf"{_SEGMENT}(?:\.(?:{_SEGMENT}|\d+)|\[(?:{_SEGMENT}|\d+)\])*")


def is_field(name: str) -> bool:
    """Whether a template may have this in braces: a column, or a path with dots or brackets."""
    return _FIELD.fullmatch(name) is not None


def path_of(field: str) -> str:
    """Return the dotted path of a template's field: `a[b].c` is `a.b.c`."""
    return field.replace("]", "").replace("[", ".")


def shown_as(column: str) -> str:
    """Return the name by which rewards and environments know a column: the last in its path.

    `reward_model.ground_truth` is `ground_truth`; an entry of a list is `choices_0`.
    """
    parts = column.split(".")
    named = [place for place, part in enumerate(parts) if part and not part.isdecimal()]
    return "_".join(parts[named[-1] :]) if named else column
