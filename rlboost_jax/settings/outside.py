"""Choices that a run takes from outside of this package, beside the built-in ones.

Such a setting has the name of a built-in choice, which is a closed type, or
"package.module:function".
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlboost_jax.platform.mistakes import ConfigError
from rlboost_jax.platform.outside_code import PATH, CodeNotFound, digest_of, imported, source_of


@dataclass(frozen=True)
class Outside:
    """A function of another package, in place of a built-in choice."""

    setting: str  # its dotted name, for errors
    path: str  # "package.module:function"

    def __str__(self) -> str:
        return f"{self.setting} {self.path!r}"


def outside(setting: str, value: str) -> Outside | None:
    """Return the function that a value names; None for a built-in choice."""
    return Outside(setting, value) if PATH.fullmatch(value) else None


def loaded(function: Outside, given: Sequence[str]) -> tuple[Callable[..., Any], frozenset[str]]:
    """Import a function, and find which of the given arguments it takes. Raises ConfigError."""
    try:
        call = imported(function.path)
    except CodeNotFound as error:
        raise ConfigError(f"{function} {error}") from error
    if not callable(call):
        raise ConfigError(f"{function} is {type(call).__name__}, no function")
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError) as error:  # of some written in C
        raise ConfigError(f"{function} cannot be asked what it takes: {error}") from None
    parameters = signature.parameters.values()
    every = any(p.kind is p.VAR_KEYWORD for p in parameters)
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = frozenset(p.name for p in parameters if p.kind in kinds)
    taken = frozenset(given) if every else named & frozenset(given)
    try:
        signature.bind(**dict.fromkeys(taken))
    except TypeError as error:
        raise ConfigError(
            f"{function} cannot be called: {error}; it is given {', '.join(given)}, by name"
        ) from None
    return call, taken


def digests_of(functions: Iterable[Outside]) -> dict[str, str]:
    """SHA-256 of the file that each function is in, by its path. Raises ConfigError."""
    found = {}
    for function in functions:
        try:
            found[function.path] = digest_of(function.path)
        except CodeNotFound as error:
            raise ConfigError(f"{function} {error}") from None
    return found


def changed_since(before: Mapping[str, str], functions: Iterable[Outside]) -> Iterator[str]:
    """Yield a line per function whose file is not the one that a run began with.

    Args:
        before: digests of then, as `digests_of` found them.
    """
    for function in functions:
        (now,) = digests_of([function]).values()
        if (was := before.get(function.path, now)) != now:
            yield (
                f"{function}: {source_of(function.path)} has changed since the run began, SHA-256 "
                f"{was[:12]}… → {now[:12]}…"
            )
