"""Helpers of the adapters: packages that may be missing, and numbering of examples."""

import importlib
from collections.abc import Iterable, Mapping
from types import ModuleType
from typing import Any, Final

from rlboost_jax.platform.mistakes import ConfigError, install, nearest

HELDOUT_EVERY: Final = (
    8  # one index in so many, as rlboost_jax/environments/episode_exercises.py has it
)


def imported(module: str, *, extra: str) -> ModuleType:
    """Import a module of a package that is an extra of ours.

    Raises:
        ConfigError: it is not installed, or is there and cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = f"needs the package {error.name}"
    except Exception as error:  # of a package that does not fit the others
        missing = f"cannot import {module}: {type(error).__name__}: {error}"
    raise ConfigError(f"environment.name {extra.replace('-', '_')!r} {missing}; {install(extra)}")


def known(option: str, name: str, names: Iterable[str]) -> str:
    """Return the name if it is one of these. Raises ConfigError with the nearest one."""
    if name in (names := sorted(names)):
        return name
    some = ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")
    hint = nearest(name, names, shown="{!r}") or f"known: {some}"
    raise ConfigError(f"environment.options: there is no {option} {name!r}; {hint}")


def number_of(example: Mapping[str, Any], seed: int) -> int:
    """Number of an environment's own example: `index`, or the seed if a row has none.

    Raises:
        ValueError: `index` is no number from 0 on.
    """
    index = example.get("index", seed)
    if isinstance(index, bool) or not isinstance(index, int) or index < 0:
        raise ValueError(f"example: index is {index!r}; it is a number, 0 or more")
    return index


def is_heldout(example: Mapping[str, Any]) -> bool:
    """Whether an example is for evaluation."""
    return "index" in example and example["index"] % HELDOUT_EVERY == 0


def place_of(example: Mapping[str, Any], seed: int) -> tuple[int, bool]:
    """Place of an example among those for training or evaluation, and whether it is for evaluation.

    Raises:
        ValueError: `index` is no number from 0 on.
    """
    block, place = divmod(number_of(example, seed), HELDOUT_EVERY)
    if is_heldout(example):
        return block, True
    return block * (HELDOUT_EVERY - 1) + max(place - 1, 0), False
