"""Configurations by name: those of `configs/`, which come with the package.

    rlboost configs                         name them, with what they are
    rlboost configs quickstart > mine.py    print one, to begin with

`--config=NAME` takes one of them wherever it is given, `--config=PATH` any file.
"""

import ast
import os
import signal
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rlboost_jax import configs
from rlboost_jax.platform import command_parser, exits
from rlboost_jax.platform.mistakes import ConfigError, nearest, suggestion

FOLDER: Final = Path(configs.__path__[0])
OF_SIMULATIONS: Final = "sim"  # its folder in there; runs have none of their own


def shipped(kind: str = "") -> dict[str, Path]:
    """Map the names of shipped configurations to their files.

    Args:
        kind: "" for runs, or `OF_SIMULATIONS`.
    """
    files = sorted((FOLDER / kind).glob("*.py"))
    return {path.stem: path for path in files if "\ndef get_config(" in path.read_text("utf-8")}


def file_of(given: str, kind: str = "") -> str:
    """Return the file that `--config=GIVEN` names.

    Args:
        given: a path or a name, and after a colon a string for `get_config`, which is kept.

    Raises:
        ConfigError: there is neither such a file nor such a name.
    """
    name, colon, argument = given.partition(":")
    if kind and name.startswith(f"{kind}/") and (named := shipped(kind).get(name[len(kind) + 1 :])):
        return f"{named}{colon}{argument}"
    try:
        open(name, "rb").close()
    except OSError as error:
        known = shipped(kind)
        if name in known:
            return f"{known[name]}{colon}{argument}"
        if "/" not in name and not name.endswith(".py"):
            hint = suggestion(name, known, shown="--config={}")
            if os.path.isfile(own := f"{name}.py"):
                hint = f"did you mean --config={own}?"
            raise ConfigError(f"--config={name}: no file and no name; {hint}") from None
        hint = nearest(Path(name).stem, known, shown="--config={}")
        hint = hint or "name a file, or what `rlboost configs` lists"
        raise ConfigError(f"--config={name}: {error.strerror}; {hint}") from None
    return given


def first_line(path: Path) -> str:
    """Read the first line of a file's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").partition("\n")[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = command_parser.parser("configs", __doc__)
    parser.add_argument("name", nargs="?", metavar="NAME", help="print this one")
    name = parser.parse_args(argv).name
    runs, simulations = shipped(), shipped(OF_SIMULATIONS)
    if name is None:
        for title, found in (("train", runs), ("simulate, advise, calibrate", simulations)):
            print(f"for {title}:")
            for each, path in found.items():
                line = textwrap.shorten(
                    first_line(path), command_parser.WIDTH - 23, placeholder=" …"
                )
                print(f"  {each:<20} {line}")
        return
    known = simulations | runs | {f"{OF_SIMULATIONS}/{n}": path for n, path in simulations.items()}
    if name not in known:
        exits.leave(f"error: no {name!r}; {suggestion(name, known, shown='{}')}", exits.MISTAKE)
    print(known[name].read_text("utf-8"), end="")


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `rlboost configs | head` is no error
    main()
