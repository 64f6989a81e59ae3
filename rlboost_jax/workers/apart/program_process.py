"""Process that runs a program of the policy, then answers the requests of its test one by one.

A program of its own in the process that `sandbox_child.py` makes; nobody imports it. Standard input
is JSON: the `program`, and the two `files` of the line to its test. The program may take this
process over: nothing here is kept from it, and what it then answers are its values all the same.
What is right is decided by `verdict_process.py`, in another process.
"""

import builtins
import copy
import json
import math
import operator
import os
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Final

from rlboost_jax.workers.apart.plain_values import ChannelError, Line, Reader, Writer

_PRINTED_BYTES: Final = 2**18  # of what a call prints that its test can read
# What a plain value is asked for by its own type's methods, whatever a subclass makes of them.
_BASES: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: bytes.__bytes__,
    tuple: lambda v: tuple(tuple.__iter__(v)),
    list: lambda v: list(list.__iter__(v)),
    dict: lambda v: dict(dict.items(v)),
    set: lambda v: set(set.__iter__(v)),
    frozenset: lambda v: frozenset(frozenset.__iter__(v)),
}
_DO: Final[dict[str, Callable[..., Any]]] = {
    "call": lambda called, /, *given, **named: called(*given, **named),
    "get": getattr,
    "set": setattr,
    "delete": delattr,
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "type": type,
    "trunc": math.trunc,
    "floor": math.floor,
    "ceil": math.ceil,
    **{
        name: getattr(builtins, name)
        for name in (
            *("abs", "bool", "bytes", "complex", "divmod", "float", "format", "hash", "int"),
            *("isinstance", "issubclass", "iter", "len", "next", "repr", "reversed", "round"),
            "str",
        )
    },
    **{
        name: getattr(operator, name)
        for name in (
            *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_"),
            *("xor", "lshift", "rshift", "neg", "pos", "invert", "index", "eq", "ne", "lt", "le"),
            *("gt", "ge", "getitem", "setitem", "delitem"),
        )
    },
}


class ProgramServer:
    """Server of the program's objects that its test knows of.

    Args:
        names: the program's global names.
    """

    def __init__(self, names: dict[str, Any], line: Line) -> None:
        self._names = names
        self._line = line
        self._reader = Reader(self._resolve)  # of the question at hand
        self._objects: list[Any] = []  # by number
        self._numbers: dict[int, int] = {}  # of objects, by their `id`

    def serve(self) -> None:
        """Answer requests until the test is over."""
        self._line.send([0, "ready", sorted(n for n in self._names if type(n) is str)])
        try:
            while True:
                self._answer(*self._line.receive())
        except ChannelError:
            return

    def _answer(self, number: int, verb: str, asked: Any) -> None:
        begun = _printed()
        reader = self._reader = Reader(self._resolve)
        given, named = reader.value(asked)
        try:
            said, kind = self._done(verb, given, named), "value"
        except Exception as error:
            said, kind = _described(error), "raised"
        writer = Writer(self._refer, {id(made): n for n, made in reader.containers.items()})
        try:
            after = writer.value((given, named)) if reader.containers else asked
            message = [number, kind, writer.value(said), None if after == asked else after]
        except RecursionError as error:  # too deep
            message = [number, "raised", Writer(self._refer).value(_described(error)), None]
        self._line.send([*message, _printed_since(begun)])

    def _done(self, verb: str, given: Sequence[Any], named: dict[str, Any]) -> Any:
        match verb:
            case "name":
                return self._names[given[0]]
            case "plain":
                base = _base(given[0])
                return None if base is None else _BASES[base](given[0])
        return _DO[verb](*given, **named)

    def _refer(self, value: Any) -> Any:
        """Kind and number of a value that stays in this process."""
        if isinstance(value, _CallbackProxy):
            return ["test", value.number]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__, self._number(value)]
        if isinstance(value, type):
            name = str(value.__name__)
            if getattr(builtins, name, None) is value:
                return ["builtin", name]
            if issubclass(value, Exception):
                above = [self._refer(b) for b in value.__bases__ if issubclass(b, Exception)]
                return ["error", self._number(value), name, str(value.__module__), above]
        base = _base(value)
        return ["object", self._number(value), "" if base is None else base.__name__]

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _resolve(self, kind: str, rest: Sequence[Any]) -> Any:
        match kind:
            case "object":
                return self._objects[rest[0]]
            case "builtin":
                return getattr(builtins, rest[0])
            case "test":
                return _CallbackProxy(rest[0], self)
            case "iterator":
                return iter(self._reader.value(rest[0]))
        raise ChannelError(f"a value of kind {kind!r}")

    def ask(self, function: int, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Call a function of the test, which may make requests meanwhile."""
        self._line.send([0, "asks", Writer(self._refer).value((function, given, named)), None, ""])
        while type((message := self._line.receive())[0]) is int:  # a question has a number
            self._answer(*message)
        reply, said = message
        self._reader = Reader(self._resolve)
        value = self._reader.value(said)
        if reply == "value":
            return value
        raise getattr(builtins, value[0])(value[1])


class _CallbackProxy:
    """Proxy of a function of the test, which runs in the test's process."""

    def __init__(self, number: int, program: ProgramServer) -> None:
        self.number = number
        self._program = program

    def __call__(self, /, *given: Any, **named: Any) -> Any:
        return self._program.ask(self.number, given, named)


def _described(error: Exception) -> tuple[Any, ...]:
    """Class, text, plain arguments and attributes of an error."""
    plain = all(type(given) in (str, int, float, bool, type(None)) for given in error.args)
    return type(error), str(error), error.args if plain else (str(error),), dict(vars(error))


def _base(value: Any) -> type | None:
    """Plain type of which the value's class is a subclass; None if there is none."""
    return next((base for base in _BASES if isinstance(value, base)), None)


def _printed() -> int:
    """Number of bytes printed so far."""
    try:
        sys.stdout.flush()
        return os.lseek(1, 0, os.SEEK_CUR)
    except (OSError, ValueError, AttributeError):
        return 0


def _printed_since(begun: int) -> str:
    size = min(_PRINTED_BYTES, _printed() - begun)
    return os.pread(1, size, begun).decode(errors="replace") if size > 0 else ""


def main() -> None:
    asked = json.load(sys.stdin)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    vars(module)["__builtins__"] = builtins  # numpy's methods look for it in their caller
    code = compile(asked["program"], "<program>", "exec", dont_inherit=True)
    types.FunctionType(code, vars(module))()
    ProgramServer(vars(module), Line(*asked["files"])).serve()


if __name__ == "__main__":
    main()
