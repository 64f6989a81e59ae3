"""References that are no texts: numbers, several correct ones, or none.

Data sets hold answers as what their authors had: 5, 1e-05, "5", ["5", "6"], null. A reward function
compares texts or numbers, and a reference that is neither is an error rather than never right.
"""

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from rlboost_jax.platform import foreign_json
from rlboost_jax.platform.bounded_files import Unreadable

NUMBER: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_QUOTED: Final = re.compile(r"\s*\[\s*'")
MOST_EXPONENT: Final = 400  # of ten, beyond any float; more digits would cost memory, not tell more


def alternatives(reference: Any) -> tuple[str, ...]:
    """Texts that a reference accepts, any of them; () where there is no reference.

    None and NaN, as tables have them, are no reference. Numbers are written out, and as Python
    writes them too: 1e-05 is "0.00001" and "1e-05". A list accepts any of its members, as does a
    text that is a list of texts, by JSON or by Python.

    Raises:
        ValueError: it is a record, or bytes that are no UTF-8.
    """
    return tuple(dict.fromkeys(_texts(reference)))


def absent(reference: Any) -> bool:
    """Whether there is no reference, so that a response cannot be judged."""
    return reference is None or (isinstance(reference, float) and math.isnan(reference))


def number(text: str) -> Decimal | None:
    """Number that a text consists of; None if it is no plain number."""
    text = text.strip()
    if not NUMBER.fullmatch(text):
        return None
    value = Decimal(text)
    return value if not value or abs(value.adjusted()) <= MOST_EXPONENT else None


def written_out(value: Decimal) -> str:
    """Decimal without an exponent and trailing zeros: 1E-5 is 0.00001, 5.0 is 5."""
    text = f"{value:f}"
    return (text.rstrip("0").rstrip(".") or "0") if "." in text else text


def exact_number(value: Any) -> Fraction:
    """Exact value of a number in a data set. Raises ValueError."""
    value = _plain(value)
    if not isinstance(value, bool):
        for text in _texts(value) if not isinstance(value, list | tuple) else ():
            if (found := number(text)) is not None:
                return Fraction(found)
    raise ValueError(f"{_shown(value)} is no number")


def listed(value: Any) -> list[Any]:
    """Members of a list, or of a text that is a JSON list. Raises ValueError."""
    value = _plain(value)
    if isinstance(value, str):
        try:
            value = foreign_json.decode(value, "a reference", list, halves=True)
        except Unreadable:
            raise ValueError(f"{_shown(value)} is no list") from None
    if not isinstance(value, list | tuple):
        raise ValueError(f"{_shown(value)} is no list")
    return list(value)


def _texts(reference: Any) -> Iterator[str]:
    reference = _plain(reference)
    if absent(reference):
        return
    match reference:
        case bool():
            yield from (str(reference), str(reference).lower())
        case str():
            yield from _members(reference) or (reference,)
        case int() | float() | Decimal():
            value = Decimal(str(reference))
            if value.is_finite() and abs(value.adjusted()) <= MOST_EXPONENT:
                yield written_out(value)
            yield str(reference)
        case bytes():
            try:
                yield from _texts(reference.decode())
            except UnicodeDecodeError:
                raise ValueError(f"the reference {_shown(reference)} is no text") from None
        case Mapping():
            raise ValueError(
                f"the reference {_shown(reference)} is a record; name the field of it that is the "
                "answer in data.answer_column"
            )
        case Sequence() | set() | frozenset():
            for member in reference:
                yield from _texts(member)
        case _:
            yield str(reference)


def _members(text: str) -> list[str]:
    """Members of a list of texts, by JSON or by Python; [] for any other text, as for [1, 2]."""
    if not text.lstrip().startswith("["):
        return []
    try:
        found: Any = foreign_json.decode(text, "a reference", list, halves=True)
    except Unreadable:
        found = _in_python(text)
    return found if isinstance(found, list) and all(isinstance(m, str) for m in found) else []


def _in_python(text: str) -> Any:
    """Parse a list in Python's notation, as CSV files have it."""
    if not _QUOTED.match(text):
        return None
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None


def _plain(value: Any) -> Any:
    """Convert arrays and their scalars to plain values."""
    return value.tolist() if hasattr(value, "tolist") else value


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]} …"
