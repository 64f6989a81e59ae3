"""What a panel is made of: fields with series, and the colours that these may have."""

from dataclasses import dataclass
from typing import Literal

Format = Literal["number", "percent", "dollars", "seconds"]
Kind = Literal["line", "dots", "stack"]

BLUE, TEAL, AMBER, RED, VIOLET = "#2f6fed", "#0e9f84", "#d08a12", "#d63b3b", "#7c5cd6"
PALE, QUIET = "#a9bdec", "#7a8496"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A curve of a panel.

    Attributes:
        key: of the points; one that ends in "/" stands for all keys that begin so.
        x: the key that says where.
        right: it has the axis on the right.
        unless_zero: left out where all its numbers are 0.
    """

    key: str
    name: str
    colour: str
    kind: Kind = "line"
    x: str = "step"
    right: bool = False
    dash: bool = False
    unless_zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Field:
    """
    Attributes:
        top: of the axis on the left, at least; None: as the numbers are.
        from_zero: whether that axis begins there.
    """

    title: str
    series: tuple[Series, ...]
    format: Format = "number"
    right_title: str = ""
    right_format: Format = "number"
    from_zero: bool = True
    top: float | None = None


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One section of the page."""

    id: str
    title: str
    caption: str
    fields: tuple[Field, ...]
