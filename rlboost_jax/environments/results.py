"""Conversion of a tool's result to the text that the policy reads: text as it is, else JSON.

Numbers and arrays of NumPy and JAX are numbers and whole lists. NaN and infinities are null, as
JSON has neither; bytes are base64. Nothing is ever shown as `str` or `repr` has it where those
could leave something out or name an address in memory.
"""

import datetime
import fractions
import ipaddress
import json
import os
from collections import UserList, UserString, deque
from collections.abc import Callable, ItemsView, KeysView, Mapping, ValuesView
from types import SimpleNamespace
from typing import Any, Final

import msgspec

# Their texts are their values.
_AS_TEXT: Final = (
    *(fractions.Fraction, complex),
    *(ipaddress.IPv4Address, ipaddress.IPv6Address, ipaddress.IPv4Network, ipaddress.IPv6Network),
)
_KINDS: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (bytes, bytes),
)
_AS_LIST: Final = (deque, UserList, range, KeysView, ValuesView, ItemsView, memoryview)
_SHOWN: Final = 200  # characters of what is wrong
_PLAIN: Final = (str, bool, int, float, type(None))


class BadResult(TypeError):
    """A tool returned what no JSON stands for: a mistake of the environment, not of the policy."""


def text_of(result: Any, tool: str) -> str:
    """Convert the result of a call to text.

    Args:
        tool: its name, for the error.

    Raises:
        BadResult: some part of it has no JSON form.
    """
    if isinstance(result, str):
        return str.__str__(result)  # of NumPy's and other kinds of text, too
    try:
        try:
            return msgspec.json.encode(result, enc_hook=json_form).decode()
        except UnicodeEncodeError:  # such as a file's name that is no text
            plain = msgspec.to_builtins(result, enc_hook=json_form, str_keys=True)
            return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)
    except RecursionError:
        problem = "lists or objects in one another without end"
    except Exception as error:  # whatever the methods of its parts raise
        problem = " ".join(str(error).split())[:_SHOWN]
    raise BadResult(
        f"tool {tool!r} returned {type(result).__name__}: {problem}; return a text, or numbers, "
        "lists, dicts, dataclasses and arrays"
    )


def json_form(value: Any) -> Any:
    """Convert a value that msgspec does not know to one that it does; keys of dicts, too.

    Raises:
        TypeError: there is none.
    """
    if isinstance(value, _AS_TEXT) or _is_plain_key(value):
        return str(value)
    for kind, plain in _KINDS:
        if isinstance(value, kind):
            return plain(value)
    if isinstance(value, datetime.date | datetime.time | datetime.timedelta):  # a kind of them
        return _plain_time(value)
    if isinstance(value, os.PathLike):
        return os.fsdecode(value)
    if isinstance(value, _AS_LIST):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, UserString):
        return value.data
    if isinstance(value, SimpleNamespace):
        return vars(value)
    if callable(dump := getattr(value, "model_dump", None)) and not isinstance(value, type):
        return dump(mode="json")  # pydantic
    dtype = str(getattr(value, "dtype", ""))
    if names := getattr(getattr(value, "dtype", None), "names", None):  # of a record, or many
        return list(value) if value.ndim else {name: value[name] for name in names}
    if dtype.startswith(("datetime64", "timedelta64")):  # whose items are of several types
        return list(value) if value.ndim else None if value != value else str(value)
    labelled = type(value).__module__.split(".")[0] == "pandas" and hasattr(value, "index")
    tolist = None if labelled or isinstance(value, type) else getattr(value, "tolist", None)
    if callable(tolist):
        found = tolist()  # whole arrays, and scalars
        return float(value) if type(found) is type(value) else found
    raise TypeError(f"no JSON stands for {type(value).__module__}.{type(value).__qualname__}")


def _plain_time(value: Any) -> Any:
    """Convert times such as pandas'; None if it is no time."""
    if value != value:
        return None
    if isinstance(value, datetime.timedelta):
        return datetime.timedelta(value.days, value.seconds, value.microseconds)
    return value.isoformat()


def _is_plain_key(value: Any) -> bool:
    """Whether a key is plain; msgspec asks for keys of a dict only."""
    parts = value if type(value) is tuple else (value,)
    return all(type(part) in _PLAIN for part in parts)
