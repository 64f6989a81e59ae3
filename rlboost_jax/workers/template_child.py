"""Script that renders chat templates in a process that can only compute, within limits.

A script of its own, of the standard library and Jinja, started by `template_process.py` as
`python -P -s -B template_child.py SANDBOX MEMORY CHARACTERS PATH…`: the file that contains it
(`workers/sandbox_child.py`), bytes of memory, characters of each text, and where Jinja is found.
Requests come by standard input, answers go by standard output:

    request   lengths of two texts (">QQ"), the template, and what it is given as a JSON object
    answer    one of the letters below, seconds of processor time used so far, a length (">cQQ"),
              and a text

The parent limits processor time before each request, by those seconds. The text is the one that
transformers makes of the same template and values, to the byte.
"""

import contextlib
import datetime
import functools
import importlib.util
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from typing import IO, Any, Final

DATE: Final = datetime.date(2024, 7, 26)  # what Llama's templates take where they have no clock
REQUEST: Final = struct.Struct(">QQ")
ANSWER: Final = struct.Struct(">cQQ")
READY: Final = b"y"
TEXT: Final = b"t"
REFUSED: Final = b"r"  # the template raised an error for these values
NO_TEMPLATE: Final = b"n"
MEMORY: Final = b"m"  # it wanted more than it may have
TOO_LONG: Final = b"l"  # it wrote more than it may
LETTERS: Final = 1000  # of a message


def main() -> None:
    sandbox, memory, characters, *paths = sys.argv[1:]
    sys.path += paths
    requests, answers = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this ends
    compiled = functools.lru_cache(maxsize=8)(_compiler())
    limits = {"memory_bytes": int(memory), "cpu_seconds": resource.RLIM_INFINITY, "output_bytes": 0}
    _contain(sandbox, limits)
    _answer(answers, READY, "")
    while header := requests.read(REQUEST.size):
        template, values = map(requests.read, REQUEST.unpack(header))
        kind, text = _rendered(compiled, _text(template), _text(values), int(characters))
        _answer(answers, kind, text)


def _contain(sandbox: str, limits: dict[str, int]) -> None:
    """Deny this process network, files and processes, and limit its memory."""
    spec = importlib.util.spec_from_file_location("sandbox_child", sandbox)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.contain(limits)


def _rendered(
    compiled: Callable[[str], Any], template: str, values: str, characters: int
) -> tuple[bytes, str]:
    """Kind of the answer, and its text."""
    import jinja2

    try:
        try:
            program = compiled(template)
        except jinja2.TemplateSyntaxError as error:
            return NO_TEMPLATE, f"line {error.lineno}: {error.message}"
        except (RecursionError, OverflowError, ValueError, SyntaxError) as error:
            return NO_TEMPLATE, f"{type(error).__name__}: {error}"
        try:
            text = str(program.render(**json.loads(values)))
        except MemoryError:
            raise
        except Exception as error:  # templates raise what they like
            return REFUSED, f"{type(error).__name__}: {error}"
        return (TEXT, text) if len(text) <= characters else (TOO_LONG, "")
    except MemoryError:
        return MEMORY, ""


def _answer(answers: IO[bytes], kind: bytes, text: str) -> None:
    data = (text if kind == TEXT else text[:LETTERS]).encode(errors="surrogatepass")
    used = resource.getrusage(resource.RUSAGE_SELF)
    answers.write(ANSWER.pack(kind, int(used.ru_utime + used.ru_stime), len(data)) + data)
    answers.flush()


def _text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def _compiler() -> Callable[[str], Any]:
    """Function that compiles a template as transformers does; it imports Jinja."""
    from jinja2 import TemplateError, nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}` marks what an assistant says, and is no text."""

        tags = {"generation"}  # noqa: RUF012 (as its base declares it)

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), True)
            return nodes.CallBlock(self.call_method("_said"), [], [], body).set_lineno(line)

        def _said(self, caller: Callable[[], str]) -> str:
            return caller()

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _json  # Jinja's own sorts keys and escapes < > & '
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = DATE.strftime
    with contextlib.suppress(Exception):  # what it imports late
        environment.from_string("{{ [1] | map('string') | join }}{{ {} | tojson }}").render()
    return environment.from_string


def _json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


if __name__ == "__main__":
    main()
