"""Errors that a second start with the same command would meet again, and how to put them."""

import difflib
from collections.abc import Iterable


class Mistake(Exception):
    """Something must be changed before the same command can go on; the message says what."""


class ConfigError(Mistake, ValueError):
    """What is wrong and what to change, one line per mistake."""


def suggestion(name: str, known: Iterable[str], *, shown: str = "{!r}") -> str:
    """What to say of a name that does not exist: the nearest one that does, or all there are.

    Args:
        shown: format of the nearest one.
    """
    known = tuple(known)
    every = ", ".join(each or "''" for each in known)
    return nearest(name, known, shown=shown) or f"known: {every}"


def nearest(name: str, known: Iterable[str], *, shown: str = "{}") -> str:
    """The question whether the nearest name is meant; "" where none is near."""
    near = difflib.get_close_matches(name, tuple(known), n=1)
    return f"did you mean {shown.format(near[0])}?" if near else ""


def install(extra: str) -> str:
    """What to do about packages of an extra that are not there: the project is on no index."""
    return f"in a checkout of rlboost-jax, `pip install -c requirements.lock -e '.[{extra}]'`"
