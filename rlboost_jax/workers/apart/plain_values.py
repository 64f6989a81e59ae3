"""Values as bytes, between the process of a program and that of its test.

Plain values (None, bool, int, float, complex, str, bytes, bytearray, list, tuple, dict, set,
frozenset, Ellipsis) and a few of the standard library (`_COPIED`) are copied; what is of such a
type exactly is copied as that type. Everything else stays where it is and gets a number. What the
other process sends is read as data: reading it calls nothing of the sender's, and takes `MAX_BYTES`
at most.

A message is its length in 4 bytes and JSON. A value is null, a truth value, a number, a text, or a
list that begins with its kind. Lists, dicts and sets are numbered, so that one that is there twice
is one afterwards too, and so that what a call changed in its arguments can be put back.
"""

import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

MAX_BYTES: Final = 2**25  # of a message
MAX_DEPTH: Final = 400  # of values in values
_EXACT_IN_JSON: Final = 2**53
_CONTAINERS: Final = (list, dict, set, bytearray)
_FACTORIES: Final[dict[str, type]] = {
    kind.__name__: kind for kind in (int, float, str, list, dict, set, tuple)
}
_LONE: Final = {"Ellipsis": Ellipsis, "NotImplemented": NotImplemented}

# What is copied besides: where it is, the parts of one, and one of its parts.
_COPIED: Final[dict[tuple[str, str], tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]]] = {
    ("builtins", "range"): (lambda v: (v.start, v.stop, v.step), lambda t, p: t(*p)),
    ("builtins", "slice"): (lambda v: (v.start, v.stop, v.step), lambda t, p: t(*p)),
    ("collections", "Counter"): (dict, lambda t, p: t(p)),
    ("collections", "OrderedDict"): (dict, lambda t, p: t(p)),
    ("collections", "defaultdict"): (
        lambda v: (getattr(v.default_factory, "__name__", ""), dict(v)),
        lambda t, p: t(_FACTORIES.get(p[0]), p[1]),
    ),
    ("collections", "deque"): (lambda v: (list(v), v.maxlen), lambda t, p: t(*p)),
    ("fractions", "Fraction"): (lambda v: (v.numerator, v.denominator), lambda t, p: t(*p)),
    ("decimal", "Decimal"): (str, lambda t, p: t(p)),
    ("datetime", "date"): (lambda v: v.isoformat(), lambda t, p: t.fromisoformat(p)),
    ("datetime", "datetime"): (lambda v: v.isoformat(), lambda t, p: t.fromisoformat(p)),
    ("datetime", "time"): (lambda v: v.isoformat(), lambda t, p: t.fromisoformat(p)),
    ("datetime", "timedelta"): (
        lambda v: (v.days, v.seconds, v.microseconds),
        lambda t, p: t(*p),
    ),
    ("numpy", "ndarray"): (
        lambda v: (v.dtype.str, v.shape, v.ravel().tolist()),
        lambda t, p: sys.modules["numpy"].array(p[2], dtype=p[0]).reshape(p[1]),
    ),
}
_NUMERIC: Final = "biufcU"  # kinds of arrays that are copied
_SCALAR: Final = (
    "iufc"  # and of single numbers; a truth value comes as Python's: `is True` is right
)
# How a copy takes on what another holds: what a call changed in it.
_REFILLED: Final[dict[str, Callable[[Any, Any], Any]]] = {
    **dict.fromkeys(
        ("Counter", "OrderedDict", "defaultdict"),
        lambda old, new: (old.clear(), old.update(new)),
    ),
    "deque": lambda old, new: (old.clear(), old.extend(new)),
    "ndarray": lambda old, new: old.__setitem__(..., new),
}


class ChannelError(Exception):
    """The other process is gone, or sent what is no message."""


class Writer:
    """Encoder of the values of one message.

    Args:
        refer: what stands for a value that stays here; it begins with a kind of its own.
        numbers: of lists, dicts and sets that the other process knows, by their `id`.
    """

    def __init__(self, refer: Callable[[Any], Any], numbers: dict[int, int] | None = None) -> None:
        self._refer = refer
        self.numbers = {} if numbers is None else dict(numbers)
        self.containers: dict[int, Any] = {}  # by number; they live as long as their `id` counts
        self._written: set[int] = set()

    def value(self, value: Any, depth: int = 0) -> Any:
        """Encode a value. Raises RecursionError if values are nested too deeply."""
        if depth > MAX_DEPTH:
            raise RecursionError(f"values lie more than {MAX_DEPTH} deep in one another")
        kind = type(value)
        if value is None or kind in (bool, float, str):
            return value
        if kind is int:
            return value if -_EXACT_IN_JSON < value < _EXACT_IN_JSON else ["int", hex(value)]
        if kind is complex:
            return ["complex", value.real, value.imag]
        if kind is bytes:
            return ["bytes", value.hex()]
        if kind in (tuple, frozenset):
            return [kind.__name__, [self.value(member, depth + 1) for member in value]]
        if kind in _CONTAINERS:
            return self._container(value, depth)
        if value is Ellipsis or value is NotImplemented:
            return ["lone", repr(value)]
        if (numpy := sys.modules.get("numpy")) is not None and hasattr(numpy, "generic"):
            if isinstance(value, numpy.generic) and value.dtype.kind in _SCALAR:
                return ["scalar", value.dtype.str, self.value(value.item(), depth + 1)]
            if isinstance(value, numpy.generic):
                return self.value(value.item(), depth + 1)
            if kind is numpy.ndarray and value.dtype.kind not in _NUMERIC:
                return self._refer(value)
        place = kind.__module__, kind.__name__
        if place in _COPIED and getattr(sys.modules.get(place[0]), place[1], None) is kind:
            return self._copied(place, value, depth)
        return self._refer(value)

    def _copied(self, place: tuple[str, str], value: Any, depth: int) -> Any:
        number = None
        if place[1] in _REFILLED:
            number = self.numbers.setdefault(id(value), len(self.numbers))
            self.containers[number] = value
            if number in self._written:
                return ["again", number]
            self._written.add(number)
        return ["copy", *place, number, self.value(_COPIED[place][0](value), depth + 1)]

    def _container(self, value: Any, depth: int) -> Any:
        number = self.numbers.setdefault(id(value), len(self.numbers))
        self.containers[number] = value
        if number in self._written:
            return ["again", number]
        self._written.add(number)
        content: Any
        if isinstance(value, bytearray):
            content = value.hex()
        elif isinstance(value, dict):
            content = [
                [self.value(key, depth + 1), self.value(member, depth + 1)]
                for key, member in value.items()
            ]
        else:
            content = [self.value(member, depth + 1) for member in value]
        return [type(value).__name__, number, content]


class Reader:
    """Decoder of the values of one message.

    Args:
        resolve: (kind, rest) → what the other process refers to. Raises what it likes.
        containers: that are there already, by number: they get the content that is read.
    """

    def __init__(
        self,
        resolve: Callable[[str, Sequence[Any]], Any],
        containers: dict[int, Any] | None = None,
    ) -> None:
        self._resolve = resolve
        self.containers = {} if containers is None else dict(containers)

    def value(self, node: Any) -> Any:
        """Decode a value. Raises whatever Python raises for a malformed node."""
        if type(node) is not list:
            return node if type(node) is not dict else self._resolve("dict", ())
        kind, *rest = node
        match kind:
            case "int":
                return int(rest[0], 16)
            case "complex":
                return complex(float(rest[0]), float(rest[1]))
            case "bytes":
                return bytes.fromhex(rest[0])
            case "tuple":
                return tuple(map(self.value, rest[0]))
            case "frozenset":
                return frozenset(map(self.value, rest[0]))
            case "scalar":
                return importlib.import_module("numpy").dtype(rest[0]).type(self.value(rest[1]))
            case "again":
                return self.containers[rest[0]]
            case "copy":
                return self._copied(*rest)
            case "lone":
                return _LONE[rest[0]]
            case "list" | "dict" | "set" | "bytearray":
                return self._container(kind, *rest)
        return self._resolve(kind, rest)

    def _copied(self, module: str, name: str, number: int | None, parts: Any) -> Any:
        made = _COPIED[module, name][1]
        kind = getattr(importlib.import_module(module), name)
        value = made(kind, self.value(parts))
        if number is None:
            return value
        old: Any = self.containers.get(number)
        if type(old) is not kind or (name == "ndarray" and old.shape != value.shape):
            self.containers[number] = value
            return value
        if name != "ndarray" or old.flags.writeable:
            _REFILLED[name](old, value)
        return old

    def _container(self, kind: str, number: int, content: Any) -> Any:
        known = {made.__name__: made for made in _CONTAINERS}
        made: Any = self.containers.get(number)
        if type(made) is not known[kind]:
            made = self.containers[number] = known[kind]()
        if isinstance(made, bytearray):
            made[:] = bytes.fromhex(content)
        elif isinstance(made, dict):
            pairs = [(self.value(key), self.value(member)) for key, member in content]
            made.clear()
            made.update(pairs)
        else:
            members = [self.value(member) for member in content]
            made.clear()
            made.extend(members) if isinstance(made, list) else made.update(members)
        return made


class Line:
    """Connection to the other process, over two pipes."""

    def __init__(self, incoming: int, outgoing: int) -> None:
        self._incoming, self._outgoing = incoming, outgoing

    def send(self, message: Any) -> None:
        """Send a message. Raises ChannelError, and ValueError if it is too large."""
        data = json.dumps(message, separators=(",", ":")).encode("ascii")
        if len(data) > MAX_BYTES:
            raise ValueError(f"a value of {len(data):,} bytes; a call takes {MAX_BYTES:,}")
        rest = memoryview(len(data).to_bytes(4, "big") + data)
        try:
            while rest:
                rest = rest[os.write(self._outgoing, rest) :]
        except OSError as error:
            raise ChannelError(str(error)) from None

    def receive(self) -> Any:
        """Wait for a message. Raises ChannelError."""
        size = int.from_bytes(self._exactly(4), "big")
        if size > MAX_BYTES:
            raise ChannelError(f"a message of {size:,} bytes")
        try:
            return json.loads(self._exactly(size))
        except (ValueError, RecursionError) as error:
            raise ChannelError(f"no message: {error}") from None

    def _exactly(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = os.read(self._incoming, min(size - len(data), 2**20))
            if not part:
                raise ChannelError("the other process is gone")
            data += part
        return bytes(data)
