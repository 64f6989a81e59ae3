"""How commands take options, and how they say what there are: the same for all of them.

`--help` fits 100 columns and ends with code 0. A mistake on a command line is one line, and code 2.
"""

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from rlboost_jax.platform import exits
from rlboost_jax.platform.mistakes import ConfigError, nearest
from rlboost_jax.platform.readable import check_text

if TYPE_CHECKING:
    from absl import flags

WIDTH: Final = 100  # columns
HELP: Final = frozenset({"-h", "-help", "--help", "--helpshort", "--helpfull"})


class CommandParser(argparse.ArgumentParser):
    """A parser made by `parser`."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        given = sys.argv[1:] if args is None else list(args)
        if problem := unreadable(given):
            exits.leave(f"error: {problem}", exits.MISTAKE)
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for argument in given:
            name = argument.partition("=")[0]
            if name.startswith("--") and not any(option.startswith(name) for option in known):
                self.error(f"no option {name}; {nearest(name, known)}".rstrip("; "))
        return super().parse_known_args(given, namespace)

    def error(self, message: str) -> NoReturn:
        more = "" if message.endswith("?") else f"; {self.prog} --help has the options"
        exits.leave(f"error: {message}{more}", exits.MISTAKE)


def unreadable(arguments: Iterable[str]) -> str:
    """Say which argument, or the current folder, is no text in UTF-8; "" where all are."""
    try:
        for argument in arguments:
            name, equals, value = argument.partition("=")
            check_text(value if equals else argument, name if equals else "an argument")
        check_text(os.getcwd(), "the current folder")
    except ConfigError as error:
        return str(error)
    except OSError:  # it is gone
        return ""
    return ""


def parser(command: str, description: str | None) -> CommandParser:
    """Make a parser for the options of `rlboost COMMAND`.

    Args:
        description: lines of at most 100 columns, which stay as they are; often `__doc__`.
    """
    return _parser(f"rlboost {command}", description)


def address(text: str) -> str:
    """Parse HOST:PORT, as the type of an option; of IPv6 [HOST]:PORT."""
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 10.0.0.5:8476")
    return text


def take_none(module: str, description: str | None) -> None:
    """Accept `--help` alone, for a module that makes a page of docs/."""
    _parser(f"python -m {module}", description).parse_args()


def _parser(program: str, description: str | None) -> CommandParser:
    columns = min(WIDTH, shutil.get_terminal_size().columns)
    formatter = partial(argparse.RawDescriptionHelpFormatter, width=columns)
    return CommandParser(prog=program, description=description, formatter_class=formatter)


def help_of_flags(command: str, description: str | None, found: "Iterable[flags.Flag]") -> str:
    """Return the `--help` text for flags of absl, whose own is wide and ends with 1."""
    options = parser(command, description)
    for flag in found:
        text = (flag.help or "").replace("%", "%%")
        if flag.boolean:
            options.add_argument(f"--{flag.name}", action="store_true", help=text)
            continue
        if flag.default not in (None, "") and flag.name != "config":
            text = f"{text.rstrip('.')}; default {flag.default}"
        options.add_argument(f"--{flag.name}", help=text)
    return options.format_help()
