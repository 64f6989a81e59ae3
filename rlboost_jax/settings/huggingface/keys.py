"""Keys of a checkpoint's config.json, checked to be of their kind.

What is wrong raises ConfigError, a line that names the file and the key.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError

_MOST: Final = 2**31 - 1  # of a whole number: positions and ids are of 32 bits


def required(values: Mapping[str, Any], key: str, where: str) -> Any:
    """Return the value of a key, which must be there; `where` is the file's path."""
    if values.get(key) is None:
        raise ConfigError(
            f"{where}: {key} is missing; a {values.get('model_type', 'rope')} needs it"
        )
    return values[key]


def whole(
    values: Mapping[str, Any], key: str, where: str, default: int | None = None, *, least: int = 1
) -> int:
    """Return a whole number; required where there is no default."""
    value = values.get(key)
    if value is None:
        value = required(values, key, where) if default is None else default
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST:
        raise ConfigError(
            f"{where}: {key} is {value!r:.60}; it must be a whole number from {least} to {_MOST}"
        )
    return value


def number(values: Mapping[str, Any], key: str, where: str, default: float | None = None) -> float:
    """Return a finite number that is not negative; required where there is no default."""
    value = values.get(key)
    if value is None:
        value = required(values, key, where) if default is None else default
    if (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or value < 0
    ):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be a number of at least 0")
    return float(value)


def flag(values: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    """Return True or False; `default` where the key is missing."""
    value = values.get(key)
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be true or false")
    return default if value is None else value


def section(values: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    """Return the mapping under a key; empty where the key is missing."""
    value = values.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"{where}: {key} is {value!r}; it must be a section")
    return value or {}
