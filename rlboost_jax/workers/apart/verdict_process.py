"""Process that runs a test of a program in another process, and exits with 0 if the test holds.

A program of its own in the process that `sandbox_child.py` makes; nobody imports it. Standard input
is JSON: the `test`, and the two `files` of the line to `program_process.py`. What the program
answers is data here; the test compares it in this process, which the program cannot reach.

The test finds the program's global names as its own. Plain values come as copies. Functions,
classes and their instances stay with the program, and a `Remote` takes their place: it asks the
program for what the test does with it. Two rules keep the verdict here:

- An object of the program never decides how it compares with a plain value. It equals none, unless
  it is an instance of a subclass of a plain type, whose plain value then counts. What arithmetic
  with a plain value makes of it is an object again, and no number.
- A name that Python or its library has (`abs`, `sorted`, `Counter`) is theirs, whatever the program
  defines, unless the test uses no other name of the program's: then it is what is tested.
"""

import builtins
import importlib
import json
import sys
import threading
import types
from collections.abc import Callable, ItemsView, Iterator, KeysView, Sequence, ValuesView
from typing import Any, Final, NoReturn

from rlboost_jax.workers.apart.known_names import MODULES, Names
from rlboost_jax.workers.apart.plain_values import ChannelError, Line, Reader, Writer
from rlboost_jax.workers.apart.stand_ins import PLAIN, Remote, name_of, reference, unsendable

_OF_LIBRARY: Final = ("decimal", "json.decoder", "statistics")  # whose errors are theirs
_TEXT: Final = "rlboost_text"  # attribute of an error of the program's


class _Lost(BaseException):
    """The program is gone, or broke the rules. The test has failed, whatever it catches."""


class ProgramProxy:
    """Connection to the program, with the objects of it that the test knows."""

    def __init__(self, line: Line) -> None:
        self.lost = False
        self._line = line
        self._lock = threading.RLock()
        self._writer = Writer(self._refer)  # of the message under way
        self._remotes: dict[int, Any] = {}
        self._functions: list[Callable[..., Any]] = []  # of the test, by number
        self._count = 0
        self.names = frozenset(self._received(0, "ready"))

    def ask(self, verb: str, /, *given: Any, **named: Any) -> Any:
        """Make a request to the program and return its answer; its exceptions are raised here."""
        with self._lock:
            writer = self._writer = Writer(self._refer)
            self._count += 1
            number = self._count
            asked = writer.value((given, named))
            self._sent([number, verb, asked])
            kind, said, after, printed = self._reply(number)
            reader = Reader(self._resolve, writer.containers)
            with self._reading():
                if after is not None:
                    reader.value(after)
                said = reader.value(said)
        if printed:
            sys.stdout.write(printed)
        if kind == "value":
            return said
        raise self._error(said)

    def _reply(self, number: int) -> Sequence[Any]:
        """Answer the requests that the program makes meanwhile."""
        while True:
            with self._reading():
                got, kind, *rest = self._line.receive()
                if (got, kind) != (0, "asks"):
                    if got != number or kind not in ("value", "raised"):
                        raise ChannelError("an answer to another question")
                    said, after, printed = rest
                    if type(printed) is not str:
                        raise ChannelError("what was printed is no text")
                    return kind, said, after, printed
                function, given, named = Reader(self._resolve).value(rest[0])
                called = self._functions[function]
            try:
                answer = called(*given, **named)  # which may ask the program
                self._writer = Writer(self._refer)
                self._sent(["value", self._writer.value(answer)])
            except Exception as error:
                base = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
                self._sent(["raised", ["tuple", [base.__name__, str(error)]]])

    def _received(self, number: int, kind: str) -> Any:
        with self._reading():
            got = self._line.receive()
            if got[:2] != [number, kind] or not all(type(name) is str for name in got[2]):
                raise ChannelError("no greeting")
            return got[2]

    def _sent(self, message: Any) -> None:
        try:
            self._line.send(message)
        except ChannelError as error:
            self.lose(error)
        except ValueError as error:
            unsendable(f"gives the program {error}")

    def _reading(self) -> "_Reading":
        return _Reading(self)

    def lose(self, error: BaseException) -> NoReturn:
        self.lost = True
        raise _Lost(str(error))

    def _refer(self, value: Any) -> Any:
        """Kind and number of an object of the program, or of a function of the test."""
        if type(value) is Remote:
            return ["object", *reference(value)]
        if (known := getattr(value, "rlboost_number", None)) is not None and type(value) is type:
            return ["object", known, ""]
        if callable(value) and getattr(builtins, name := name_of(value), None) is value:
            return ["builtin", name]
        if callable(value) and not isinstance(value, type):
            self._functions.append(value)
            return ["test", len(self._functions) - 1]
        if isinstance(value, Iterator | KeysView | ValuesView | ItemsView):
            return ["iterator", self._writer.value(tuple(value), 1)]
        unsendable(f"gives the program an instance of {type(value).__name__!r}")

    def _resolve(self, kind: str, rest: Sequence[Any]) -> Any:
        match kind:
            case "object":
                number, base = rest
                return self._known(number, lambda: Remote(self.ask, number, PLAIN.get(base)))
            case "module":
                name, number = rest
                if name in MODULES:
                    return importlib.import_module(name)
                return self._known(number, lambda: Remote(self.ask, number, None))
            case "builtin":
                found = getattr(builtins, rest[0])
                if not isinstance(found, type):
                    raise ChannelError(f"{rest[0]} is no type")
                return found
            case "error":
                number, name, module, above = rest
                return self._known(number, lambda: self._error_class(number, name, module, above))
            case "test":
                return self._functions[rest[0]]
        raise ChannelError(f"a value of kind {kind!r}")

    def _known(self, number: Any, make: Callable[[], Any]) -> Any:
        if type(number) is not int:
            raise ChannelError("a number that is none")
        if number not in self._remotes:
            self._remotes[number] = make()
        return self._remotes[number]

    def _error(self, said: Any) -> Exception:
        with self._reading():
            cls, text, given, attributes = said
            if not issubclass(cls, Exception):
                raise ChannelError("what is raised is no exception")
            try:
                error: Exception = cls(*given)
            except TypeError:
                error = cls.__new__(cls)
                error.args = (text,)
            if type(cls) is type and cls.__module__ == __name__:
                attributes[_TEXT] = text
            error.__dict__.update(attributes)
            return error

    def _error_class(self, number: int, name: str, module: str, above: Any) -> type[Exception]:
        if module in _OF_LIBRARY:
            found = getattr(importlib.import_module(module), name)
        else:
            bases = tuple(self._resolve(kind, rest) for kind, *rest in above)
            known = {"rlboost_number": number, "__str__": _text, "__module__": __name__}
            found = type(str(name), bases, known)
        if not (isinstance(found, type) and issubclass(found, Exception)):
            raise ChannelError(f"{name} is no exception")
        return found


class _Reading:
    """Context in which any error in received data ends the connection to the program."""

    def __init__(self, program: ProgramProxy) -> None:
        self._program = program

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: Any, error: BaseException | None, *rest: Any) -> None:
        if isinstance(error, Exception):
            self._program.lose(error)


def _text(error: Exception) -> str:
    """Text of the program's error or, for one that the test made, Python's own."""
    own: Any = next(c for c in type(error).__mro__ if c.__module__ == "builtins")
    return vars(error).get(_TEXT, own.__str__(error))


def main() -> None:
    asked = json.load(sys.stdin)
    program = ProgramProxy(Line(*asked["files"]))
    names = Names(program.ask, program.names, asked["test"])
    try:
        types.FunctionType(compile(asked["test"], "<test>", "exec", dont_inherit=True), names)()
    except SystemExit as end:  # as of `unittest.main()`
        if end.code is not None and end.code != 0:
            raise
    if program.lost:
        raise _Lost


if __name__ == "__main__":
    main()
