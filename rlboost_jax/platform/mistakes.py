"""Errors that a second start with the same command would meet again, and how to put them."""

import difflib
from collections.abc import Iterable
from typing import Final

_LONGEST: Final = 2000  # characters of a line


class Mistake(Exception):
    """Something must be changed before the same command can go on; the message says what.

    Its lines are short and printable, whatever keys and values of others they show.
    """

    def __init__(self, *args: object) -> None:
        if args and isinstance(args[0], str):
            lines = (plain(line, _LONGEST) for line in args[0].split("\n"))
            args = ("\n".join(lines), *args[1:])
        super().__init__(*args)


class ConfigError(Mistake, ValueError):
    """What is wrong and what to change, one line per mistake.

    Attributes:
        setting: what the message begins with, where another setting may have led to the same
            mistake; else "".
    """

    def __init__(self, *args: object, setting: str = "") -> None:
        """Args:
        setting: put before the message, which goes on with `: …` or ` is …`.
        """
        if setting and args:
            args = (f"{setting}{args[0]}", *args[1:])
        super().__init__(*args)
        self.setting = setting

    def under(self, setting: str) -> "ConfigError":
        """The mistake as one of another setting; as it is where it names none."""
        if not self.setting:
            return self
        return ConfigError(str(self).removeprefix(self.setting), setting=setting)


def plain(text: object, most: int = 60) -> str:
    """Make another party's text fit into a line: printable, and cut if it is long."""
    written = str(text)
    if len(written) > most:  # its end may be what to do
        written = f"{written[: most * 3 // 4 - 3]} … {written[-(most // 4) :]}"
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in written
    )


def suggestion(name: str, known: Iterable[str], *, shown: str = "{!r}") -> str:
    """Name the nearest known name, or all there are, for a name that does not exist.

    Args:
        shown: format of the nearest one.
    """
    known = tuple(known)
    every = ", ".join(each or "''" for each in known)
    return nearest(name, known, shown=shown) or f"known: {every}"


def nearest(name: str, known: Iterable[str], *, shown: str = "{}") -> str:
    """Ask whether the nearest name is meant; "" where none is near."""
    near = difflib.get_close_matches(name, tuple(known), n=1)
    return f"did you mean {shown.format(near[0])}?" if near else ""


def install(extra: str) -> str:
    """Say how to install the packages of an extra: the project is on no index."""
    return f"in a checkout of rlboost-jax, `pip install -c requirements.lock -e '.[{extra}]'`"
