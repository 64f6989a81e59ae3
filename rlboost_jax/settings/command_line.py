"""The command line of entry points: absl's flags and a configuration file.

A mistake on it or in the file ends the process with one line that says what to change;
`parse` goes where `absl.app.run` takes a `flags_parser`.
"""

import dataclasses
import difflib
import re
import traceback
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from rlboost_jax import exits
from rlboost_jax.settings.errors import ConfigError
from rlboost_jax.settings.renamed import successor
from rlboost_jax.settings.run import RunConfig

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
_CONFIG = re.compile(r"--?config(?:=(.*))?", re.DOTALL)


def parse(arguments: list[str], record: type = RunConfig) -> list[str]:
    """Let absl read the flags; returns the program's name. Ends the process on a mistake.

    Args:
        record: what the configuration becomes.
    """
    try:
        path = config_path(arguments)
        check_overrides(arguments, record)
        try:
            program, *others = flags.FLAGS(arguments)
        except Exception as error:  # a configuration file is a program and raises anything
            raise ConfigError(_explain(error, path)) from error
        if others:
            raise ConfigError(f"unexpected argument {others[0]!r}; options begin with --")
        return [program]
    except ConfigError as error:
        exits.leave(f"error: {error}", exits.MISTAKE)


def config_path(arguments: list[str]) -> str:
    """The file that `--config` names, without a string for its `get_config`; "" if not given.

    Raises:
        ConfigError: it cannot be opened.
    """
    path = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if (match := _CONFIG.fullmatch(argument)) is not None:
            given = following if match[1] is None else match[1]
            path = given.partition(":")[0]
    if path:
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ConfigError(
                f"--config={path}: {error.strerror}; name a file such as configs/quickstart.py"
            ) from None
    return path


def check_overrides(arguments: list[str], record: type = RunConfig) -> None:
    """Raise ConfigError for the first `--config.…` that names no field."""
    for argument in arguments:
        if (match := _OVERRIDE.match(argument)) is not None:
            name, fields = match[1], tuple(_names(record))
            if name not in fields:
                raise ConfigError(f"config.{name} {_objection(name, fields)}")


def _objection(name: str, fields: tuple[str, ...]) -> str:
    inside = [field for field in fields if field.startswith(f"{name}.")]
    if inside:
        return f"is a section; set a field of it, such as config.{inside[0]}"
    if renamed := successor(name):
        return f"does not exist; {renamed}"
    near = difflib.get_close_matches(name, fields, n=1)
    hint = f"did you mean config.{near[0]}?" if near else "docs/reference/settings.md has all"
    return f"does not exist; {hint}"


def _names(record: type, prefix: str = "") -> Iterator[str]:
    """Every field that holds a value, as on the command line."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from _names(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _explain(error: Exception, path: str) -> str:
    """One line for what went wrong while flags were read or the file ran."""
    causes: list[BaseException] = [error]
    while (earlier := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(earlier)
    for cause in reversed(causes):  # the file's own mistake is at the beginning
        line = _line_of(cause, path)
        if line is not None:
            return f"{path}, line {line}: {type(cause).__name__}: {_first_line(cause)}"
    if isinstance(error, AttributeError) and "get_config" in str(error):
        return f"{path} has no function get_config; see configs/quickstart.py for how it looks"
    return f"{_first_line(error)}; --help tells of the flags"


def _line_of(error: BaseException, path: str) -> int | None:
    """Where in the file it happened, or None if it did not."""
    if not path:
        return None
    file = str(Path(path).absolute())
    if isinstance(error, SyntaxError) and error.filename:
        return error.lineno if str(Path(error.filename).absolute()) == file else None
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f.lineno for f in frames if str(Path(f.filename).absolute()) == file]
    return lines[-1] if lines else None


def _first_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
