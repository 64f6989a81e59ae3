"""Proxies in a test for objects of the program: they ask the program, and never for a verdict.

Of the standard library only, as `verdict_process.py`, whose process has it.
"""

import operator
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

UNSENDABLE: Final = 89  # exit code: the test gives the program what cannot be given
_ASKABLE: Final = ("__name__", "__qualname__", "__doc__", "__dict__", "__annotations__")
PLAIN: Final = {
    kind.__name__: kind
    for kind in (int, float, complex, str, bytes, tuple, list, dict, set, frozenset)
}
_SCALARS: Final = (int, float, complex, str, bytes)


class Remote:
    """Proxy of an object of the program."""

    __slots__ = ("_rlboost_ask", "_rlboost_base", "_rlboost_judges", "_rlboost_number")

    def __init__(
        self, ask: Callable[..., Any], number: int, base: type | None, *, judges: bool = True
    ) -> None:
        """Create a proxy.

        Args:
            ask: (verb, values) → the program's answer.
            base: the plain type that it is an instance of a subclass of.
            judges: it may give numbers and truth; False for what arithmetic with a plain value
        made.
        """
        for name, value in (
            ("ask", ask),
            ("base", base),
            ("number", number),
            ("judges", judges),
        ):
            object.__setattr__(self, f"_rlboost_{name}", value)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:  # for `isinstance`
        return self._rlboost_base or Remote

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _ASKABLE:
            raise AttributeError(name)
        return _asked(self, "get", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _asked(self, "set", name, value)

    def __delattr__(self, name: str) -> None:
        _asked(self, "delete", name)

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        return self._rlboost_ask("call", self, *given, **named)

    def __iter__(self) -> Iterator[Any]:
        iterator = _asked(self, "iter")
        if type(iterator) is not Remote:
            return iter(iterator)
        return _Iterator(iterator)

    def __enter__(self) -> Any:
        return _asked(_asked(self, "get", "__enter__"), "call")

    def __exit__(self, *_: Any) -> None:
        _asked(_asked(self, "get", "__exit__"), "call", None, None, None)

    def __deepcopy__(self, _: Any) -> Any:
        return _asked(self, "deepcopy")

    def __instancecheck__(self, value: Any) -> bool:
        return _truth(self._rlboost_ask("isinstance", value, self))

    def __subclasscheck__(self, value: Any) -> bool:
        return _truth(self._rlboost_ask("issubclass", value, self))

    def __mro_entries__(self, _: Any) -> NoReturn:
        unsendable("derives a class from one of the program's")


class _TypeOfTypes(type):
    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, type)

    def __eq__(cls, other: Any) -> bool:
        return other is cls or other is type

    __hash__ = type.__hash__

    def __getitem__(cls, item: Any) -> Any:
        return type[item]

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if len(given) != 1 or type(given[0]) is not Remote:
            return type(*given, **named)
        found = _asked(given[0], "type")
        if type(found) is not Remote:
            raise TypeError("an object of the program has no type of the program's")
        return found


class TypeOf(metaclass=_TypeOfTypes):
    """`type` in a test: an object of the program has a class of the program's, and no other."""


class _Iterator:
    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def __iter__(self) -> "_Iterator":
        return self

    def __next__(self) -> Any:
        return _asked(self._remote, "next")


def name_of(value: Any) -> str:
    return str(getattr(value, "__name__", ""))


def _asked(remote: Remote, verb: str, *given: Any) -> Any:
    return remote._rlboost_ask(verb, remote, *given)


def reference(remote: Remote) -> tuple[int, str]:
    base = remote._rlboost_base
    return remote._rlboost_number, "" if base is None else base.__name__


def _truth(answer: Any) -> bool:
    if type(answer) is not bool:
        raise TypeError("the program's answer is no truth value")
    return answer


def _plain(value: Any) -> Any:
    """Plain value of an instance of a subclass of a plain type."""
    if type(value) is not Remote:
        return value
    found = _asked(value, "plain")
    if type(found) is not value._rlboost_base:
        raise TypeError("the program's object has no plain value")
    return found


def _compared(name: str) -> Callable[[Remote, Any], Any]:
    compare = getattr(operator, name)

    def method(self: Remote, other: Any) -> Any:
        if type(other) is Remote:
            return _truth(_asked(self, name, other))
        if self._rlboost_base is not None:
            return compare(_plain(self), other)
        if type(other).__module__ != "builtins":
            return NotImplemented  # the test's own class may know
        if name in ("eq", "ne"):
            return name == "ne"
        raise TypeError(f"{name} of an object of the program and {type(other).__name__}")

    return method


def _calculated(name: str, *, swapped: bool) -> Callable[[Remote, Any], Any]:
    calculate = divmod if name == "divmod" else getattr(operator, name)

    def method(self: Remote, other: Any) -> Any:
        pair = (other, self) if swapped else (self, other)
        if type(other) is not Remote and self._rlboost_base in _SCALARS:
            return calculate(*map(_plain, pair))
        made = self._rlboost_ask(name, *pair)
        if type(other) is Remote and self._rlboost_judges and other._rlboost_judges:
            return made
        if type(made) is not Remote:
            raise TypeError(f"{name} with an object of the program gave a plain value")
        return Remote(self._rlboost_ask, *reference(made)[:1], None, judges=False)

    return method


def _forwarded(name: str, *, judges: bool, kinds: tuple[type, ...]) -> Callable[..., Any]:
    """Method that forwards to the program.

    Args:
        judges: only of what may give numbers and truth.
        kinds: that an answer may be of, exactly; (): any.
    """

    def method(self: Remote, *given: Any) -> Any:
        if judges and not self._rlboost_judges:
            raise TypeError(f"{name} of what a plain value made of an object of the program")
        answer = _asked(self, name, *given)
        if kinds and type(answer) not in kinds:
            raise TypeError(f"{name} gave {type(answer).__name__}")
        return answer

    return method


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Remote, f"__{_name}__", _compared(_name))
for _name in (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "divmod"),
    *("and_", "or_", "xor", "lshift", "rshift"),
):
    _plain_name = _name.rstrip("_")
    setattr(Remote, f"__{_plain_name}__", _calculated(_name, swapped=False))
    setattr(Remote, f"__r{_plain_name}__", _calculated(_name, swapped=True))
for _name, _kinds in {
    **dict.fromkeys(("neg", "pos", "invert", "abs", "round", "trunc", "floor", "ceil"), ()),
    **{"bool": (bool,), "int": (int,), "index": (int,), "float": (float,), "complex": (complex,)},
}.items():
    setattr(Remote, f"__{_name}__", _forwarded(_name, judges=True, kinds=_kinds))
for _name, _kinds in {
    **{"str": (str,), "repr": (str,), "format": (str,), "bytes": (bytes,), "len": (int,)},
    **{"hash": (int,), "next": (), "reversed": (), "copy": ()},
    **{"getitem": (), "setitem": (), "delitem": ()},
}.items():
    setattr(Remote, f"__{_name}__", _forwarded(_name, judges=False, kinds=_kinds))


def unsendable(what: str) -> NoReturn:
    """End with a fault of the test, which says nothing about the program."""
    sys.stderr.write(f'\na test {what}; see docs/how-to/rewards.md, "Tests and programs"\n')
    sys.stderr.flush()
    os._exit(UNSENDABLE)
