"""JSON from files and from others, decoded within bounds: size, depth, digits, one value a key.

Every reader of JSON asks here, and a lint forbids the decoders of `json` and msgspec elsewhere.
Whatever a text is, the answer is a value of the kind that was asked for, or `Unreadable`: one line
with the file or source, what is wrong with it, and what was expected.
"""

import json
from pathlib import Path
from typing import Any, Final, TypeVar

from rlboost_jax.platform.bounded_files import Unreadable, read_bytes
from rlboost_jax.platform.readable import unreadable_places

MOST_BYTES: Final = 2**26  # of a text: the index of a checkpoint with 200,000 tensors has 20 MB
MOST_DEPTH: Final = 100  # of lists and objects in one another: readers that recurse can follow
MOST_DIGITS: Final = 308  # of a whole number, which is then within the range of a float
_SHOWN: Final = 40  # characters of a key
_WIDE: Final = (b"\xff\xfe", b"\xfe\xff")  # UTF-16, and UTF-32 of one order
_KINDS: Final[dict[type, str]] = {dict: "a JSON object", list: "a JSON list", object: "JSON"}
_NAMES: Final[dict[type, str]] = {
    **{dict: "an object", list: "a list", str: "a text", bool: "true or false"},
    **{int: "a number", float: "a number", type(None): "null"},
}

T = TypeVar("T")


def read(path: Path, kind: type[T], *, limit: int = MOST_BYTES) -> T:
    """Read the value in a JSON file.

    Raises:
        Unreadable: it is no file, or not the JSON that was expected.
        OSError: there is no such file, or it cannot be read now; the error names it.
    """
    return decode(read_bytes(path, limit, _KINDS[kind]), path, kind, limit=limit)


def decode(
    text: bytes | str,
    name: object,
    kind: type[T],
    *,
    limit: int = MOST_BYTES,
    halves: bool = False,
) -> T:
    """Decode a JSON text. NaN and infinities are numbers, as in files that Python wrote.

    Args:
        name: of the file or source, for the error.
        kind: dict, list, or object for any value.
        limit: bytes of the text, or characters.
        halves: whether texts may have half of a surrogate pair, which no file and no wire takes.

    Raises:
        Unreadable: it is no JSON, another kind of value, or beyond a limit.
    """
    try:
        return _decoded(text, kind, limit, halves)
    except json.JSONDecodeError as error:
        reason = f"is no JSON ({error.msg}: line {error.lineno}, column {error.colno})"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 (byte {error.start:,})"
    except RecursionError:
        reason = f"is nested too deeply: more than {MOST_DEPTH} lists and objects in one another"
    except _Refused as error:
        reason = str(error)
    raise Unreadable(name, reason, f"{_KINDS[kind]} of at most {limit:,} bytes")


def deeper(value: object, most: int) -> bool:
    """Whether lists and objects are nested deeper than `most`, found without recursion."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return bool(level)


class _Refused(ValueError):
    """A text is or may be JSON, but exceeds a bound; the message is the reason."""


def _decoded(text: bytes | str, kind: type[T], limit: int, halves: bool) -> T:
    """Decode a JSON text; raises JSONDecodeError, UnicodeDecodeError, RecursionError, _Refused."""
    if len(text) > limit:
        raise _Refused(f"has {len(text):,} bytes")
    plain = text.removeprefix("\ufeff") if isinstance(text, str) else _text(text)
    if not plain or plain.isspace():
        raise _Refused("is empty")
    value = _DECODER.decode(plain)
    if plain.count("[") + plain.count("{") > MOST_DEPTH and deeper(value, MOST_DEPTH):
        raise RecursionError
    if not isinstance(value, kind):
        raise _Refused(f"is {_NAMES[type(value)]}")
    if not halves and ("\\ud" in plain or "\\uD" in plain or not _is_utf8(text)):
        for place in unreadable_places(value):
            raise _Refused(f"has half of a surrogate pair in {place[:_SHOWN]!r}")
    return value


def _is_utf8(text: bytes | str) -> bool:
    return isinstance(text, bytes) or text.isascii()


def _text(data: bytes) -> str:
    """Decode bytes to text; raises UnicodeDecodeError, _Refused."""
    if data.startswith(_WIDE) or b"\0" in data[:4]:
        raise _Refused("is UTF-16, UTF-32 or no text at all")
    return data.decode("utf-8-sig")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object whose keys have one value each; the same pair twice does no harm."""
    found = dict(pairs)
    if len(found) != len(pairs):
        for key, value in pairs:
            if found[key] != value:
                raise _Refused(f"has two values of the key {key[:_SHOWN]!r} in one object")
    return found


def _whole(digits: str) -> int:
    count = len(digits.removeprefix("-"))
    if count > MOST_DIGITS:
        raise _Refused(f"has a number of {count:,} digits; at most {MOST_DIGITS} are read")
    return int(digits)


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_once, parse_int=_whole)
