"""Keys of records that others wrote: each is used, refused by name, or reported as passed over.

A reader lists the keys that it knows; what is left over goes to one of the functions here. A key
whose value is None says nothing and is no leftover: tables fill in None where a record lacks a key.
"""

import functools
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError, nearest, plain

_MOST_NAMED: Final = 20  # keys in a line

log: Final = logging.getLogger(__name__)


def unknown_keys(values: Mapping[str, Any], known: Collection[str]) -> tuple[str, ...]:
    """Return the keys that have a value and are not among `known`, in the record's order."""
    return tuple(key for key, value in values.items() if value is not None and key not in known)


def refuse_unknown(
    values: Mapping[str, Any],
    known: Collection[str],
    where: str,
    *,
    error: Callable[[str], Exception] = ConfigError,
) -> None:
    """Raise for the first key that the reader does not know.

    For records in which any key may change what a number means, such as a rope section.

    Args:
        where: the record's place for a person, such as a path and a section.
        error: makes the exception of a message.
    """
    for key in unknown_keys(values, known):
        hint = nearest(str(key), known) or f"known: {', '.join(sorted(known))}"
        raise error(
            f"{where}: {plain(key)} is {_shown(values[key])}, and nothing here reads it; {hint}"
        )


def report_unknown(values: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Warn once per process of all keys that are ignored.

    For records that carry much which no reader needs, such as the rest of a `config.json`.
    """
    if unknown := unknown_keys(values, known):
        warn_once(f"{where}: passed over: {_named(unknown)}")


@functools.lru_cache(maxsize=1024)
def warn_once(line: str) -> None:
    """Log a warning unless this process has logged the same before."""
    log.warning("%s", line)


def _named(keys: Sequence[str]) -> str:
    """Name the first few keys, each cut: a record may have thousands of keys of any length."""
    shown = ", ".join(plain(key) for key in keys[:_MOST_NAMED])
    more = len(keys) - _MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def _shown(value: Any) -> str:
    return plain(repr(value))
