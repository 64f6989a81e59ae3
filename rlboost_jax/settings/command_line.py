"""The command line of entry points: absl's flags and a configuration file.

A mistake on it or in the file ends the process with one line that says what to change;
`parse` goes where `absl.app.run` takes a `flags_parser`.
"""

import dataclasses
import difflib
import itertools
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from absl import flags

from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.settings.other_names import elsewhere
from rlboost_jax.settings.renamed import successor
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.settings.shipped import file_of, shipped

_OVERRIDE = re.compile(r"--?(?:no)?config\.([^=]*)")
_CONFIG = re.compile(r"--?config(?:=(.*))?", re.DOTALL)
_OPTION = re.compile(r"--?([a-zA-Z_][\w.-]*)")
SEE_ALL = "docs/reference/settings.md has all"
# Their entries are no fields: names are right if the file has them.
_DICTIONARIES = ("environment.options.", "environment.template_options.", "data.chat_options.")


def parse(
    arguments: list[str],
    record: type = RunConfig,
    *,
    command: str = "train",
    kind: str = "",
    others: Sequence[tuple[type, str]] = (),
) -> list[str]:
    """Let absl read the flags; returns the program's name. Ends the process on a mistake.

    Args:
        record: what the configuration becomes.
        command: whose flags they are, for `--help`.
        kind: of configurations that come with the package, which `--config` takes by name.
        others: more such records and kinds, which the configuration may be of as well; `KIND/NAME`
            is theirs where a name is of several.
    """
    if command_parser.HELP.intersection(arguments[1:]):
        own = flags.FLAGS.get_flags_for_module(arguments[0])
        print(command_parser.help_of_flags(command, sys.modules["__main__"].__doc__, own), end="")
        sys.exit(0)
    try:
        if problem := command_parser.unreadable(arguments):
            raise ConfigError(problem)
        given = config_path(arguments)
        for other, name in others:
            if _is_of(given, name, kind):
                record, kind = other, name
        arguments = with_files(arguments, kind)
        path = config_path(arguments)
        named = path != given
        check_overrides(
            arguments, *([record] if named else [record, *(each for each, _ in others)])
        )
        check_options(arguments[1:], record, *(each for each, _ in others))
        try:
            program, *unknown = flags.FLAGS(arguments)
        except Exception as error:  # a configuration file is a program and raises anything
            raise ConfigError(_missing(error, arguments, path) or _explain(error, path)) from error
        if unknown:
            raise ConfigError(f"unexpected argument {unknown[0]!r}; options begin with --")
        return [program]
    except ConfigError as error:
        exits.leave(f"error: {error}", exits.MISTAKE)


def _is_of(given: str, kind: str, before: str) -> bool:
    """Whether a name is that of a configuration of a kind, and of none of the kind before."""
    return given.startswith(f"{kind}/") or given in shipped(kind).keys() - shipped(before).keys()


def with_files(arguments: list[str], kind: str) -> list[str]:
    """Replace names after `--config` with paths of files; raises ConfigError."""
    found = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        match = _CONFIG.fullmatch(argument)
        if match is not None and match[1] == "":
            raise ConfigError(
                "--config= names nothing; name a file, or what `rlboost configs` lists"
            )
        if match is not None and match[1]:
            argument = f"--config={file_of(match[1], kind)}"
        elif _CONFIG.fullmatch(before) and "=" not in before:
            argument = file_of(argument, kind)
        found.append(argument)
    return found


def config_path(arguments: list[str]) -> str:
    """Return the file that `--config` names, less the string for its `get_config`, or ""."""
    path = ""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if (match := _CONFIG.fullmatch(argument)) is not None:
            given = following if match[1] is None else match[1]
            path = given.partition(":")[0]
    return path


def check_overrides(arguments: list[str], *records: type) -> None:
    """Raise ConfigError for the first `--config.…` that names no field of any record."""
    for argument in arguments:
        if (match := _OVERRIDE.match(argument)) is not None:
            known = (field_names(record) for record in records or (RunConfig,))
            name, fields = match[1], tuple(itertools.chain.from_iterable(known))
            if name not in fields and not name.startswith(_DICTIONARIES):
                raise ConfigError(f"config.{name} {_objection(name, fields)}")


def _objection(name: str, fields: tuple[str, ...]) -> str:
    inside = [field for field in fields if field.startswith(f"{name}.")]
    if inside:
        return f"is a section; set a field of it, such as config.{inside[0]}"
    if renamed := successor(name):
        return f"does not exist; {renamed}"
    hint = f"did you mean config.{near}?" if (near := _near(name, fields)) else SEE_ALL
    return f"does not exist; {hint}"


def _near(name: str, fields: tuple[str, ...]) -> str:
    """Return the field that a name is most likely meant to be; "" where none is near."""
    last = name.rpartition(".")[2]
    same = [field for field in fields if field.rpartition(".")[2] == last]
    if len(same) == 1:  # in another section
        return same[0]
    return next(iter(difflib.get_close_matches(name, fields, n=1)), "")


def check_options(arguments: list[str], *records: type) -> None:
    """Raise ConfigError for the first unknown option that is a setting without `--config.`."""
    fields = tuple(itertools.chain.from_iterable(map(field_names, records or (RunConfig,))))
    for argument in arguments:
        match = _OPTION.match(argument)
        if match is None or match[1].startswith("config."):
            continue
        name = match[1]
        if name in flags.FLAGS or name.removeprefix("no") in flags.FLAGS:
            continue
        if name in fields:
            raise ConfigError(f"no option --{name}; settings begin with config: --config.{name}")
        row = elsewhere(name)
        if row is not None and (row.here in fields or row.here.startswith("--")):
            option = row.here if row.here.startswith("--") else f"--config.{row.here}"
            raise ConfigError(f"no option --{name}; did you mean {option}?")
        if "." in name and (near := _near(name, fields)):
            raise ConfigError(f"no option --{name}; did you mean --config.{near}?")


def field_names(record: type, prefix: str = "") -> Iterator[str]:
    """List every setting of a record, by its name on the command line."""
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        if isinstance(field.type, type) and dataclasses.is_dataclass(field.type):
            yield from field_names(field.type, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


def _missing(error: Exception, arguments: list[str], path: str) -> str:
    """Message for an override of a dictionary's entry that the file lacks; "" of another error."""
    for argument in arguments:
        match = _OVERRIDE.match(argument)
        if match is not None and match[1].startswith(_DICTIONARIES):
            section, _, name = match[1].rpartition(".")
            if repr(name) in str(error):
                return f"config.{section} has no {name!r} in {path}; add it there"
    return ""


def _explain(error: Exception, path: str) -> str:
    """One-line message for an error while flags were read or the configuration file ran."""
    causes: list[BaseException] = [error]
    while (earlier := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(earlier)
    for cause in reversed(causes):  # the file's own mistake is at the beginning
        line = _line_of(cause, path)
        if line is not None:
            ours = isinstance(cause, ModuleNotFoundError) and cause.name == "configs"
            hint = "; outside a checkout it is rlboost_jax.configs" if ours else ""
            return f"{path}, line {line}: {type(cause).__name__}: {_first_line(cause)}{hint}"
    if isinstance(error, AttributeError) and "get_config" in str(error):
        return f"{path} has no function get_config; `rlboost configs quickstart` shows how it looks"
    return f"{_first_line(error)}; --help tells of the flags"


def _line_of(error: BaseException, path: str) -> int | None:
    """Line of the configuration file that an error comes from, None if it comes from elsewhere."""
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
