"""Reward functions by name, and one call of one of them."""

import importlib
import inspect
import math
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from rlboost_jax.rewards.builtin import BUILT_IN
from rlboost_jax.rewards.frames import Job, Outcome
from rlboost_jax.settings.errors import install
from rlboost_jax.settings.rewards import RewardConfig
from rlboost_jax.settings.validate_data import GIVEN

Call = Callable[[Job], Outcome]

_SHOWN: Final = 200  # characters of an exception


class Unusable(ValueError):
    """A function cannot be used as it is configured; the message says why."""


def load(reward: RewardConfig, columns: Collection[str]) -> Call:
    """The function as one that takes a job and never raises an Exception.

    Args:
        columns: of the data set, that every job has.

    Raises:
        Unusable
    """
    path = BUILT_IN.get(reward.name, reward.name)
    module, _, name = path.partition(":")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module of the user's raises anything
        hint = f"; {install('math')}" if reward.name == "math" else ""
        raise Unusable(f"cannot be imported: {type(error).__name__}: {error}{hint}") from error
    if reward.name in BUILT_IN:
        _check_types(function, reward.options)
    wanted = _wanted(function, reward.options, columns)
    if reward.name in BUILT_IN:
        _try(function, reward.options, wanted)

    def call(job: Job) -> Outcome:
        given = {
            "prompts": job.prompt,
            "completions": job.completion,
            "completion_ids": list(job.completion_ids),
            "finished": job.finished,
        }
        listed = {key: [value] for key, value in {**job.columns, **given}.items() if key in wanted}
        try:
            return _outcome(function(**listed, **reward.options))
        except MemoryError:
            return Outcome(fault="MemoryError: more than rewards.memory_mb")
        except Exception as error:  # the user's code: whatever it is costs this response only
            text = f"{type(error).__name__}: {error}"[:_SHOWN]
            return Outcome(fault=text.encode(errors="backslashreplace").decode())

    return call


def _check_types(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise Unusable where a built-in function has no such option, or one of another type."""
    kinds = {
        name: kind
        for name, kind in typing.get_type_hints(function).items()
        if kind in (bool, int, float, str)
    }
    for name, value in options.items():
        if name not in kinds:
            raise Unusable(f"takes no option {name!r}; it takes {', '.join(kinds) or 'none'}")
        try:
            msgspec.convert(value, kinds[name])
        except msgspec.ValidationError as error:
            raise Unusable(f"has option {name!r} of {value!r}: {error}") from None


def _try(function: Callable[..., Any], options: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Raise Unusable where a built-in function, asked about no response, refuses its options."""
    try:
        function(**{name: [] for name in wanted}, **options)
    except Exception as error:  # of whatever kind, it would be the same for every response
        raise Unusable(f"cannot be used with its options: {error}") from None


def _wanted(
    function: Callable[..., Any], options: Mapping[str, Any], columns: Collection[str]
) -> frozenset[str]:
    """The names that a function takes of those there are: it gets everything by name."""
    if not callable(function):
        raise Unusable("is no function")
    if inspect.iscoroutinefunction(function):
        raise Unusable("is a coroutine function; make it a plain one, which has its own process")
    available = {*columns, *GIVEN}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:  # of some written in C
        raise Unusable(f"cannot be asked what it takes: {error}; wrap it in a function") from None
    parameters = signature.parameters
    variable = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = {
        n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    for name in options:
        if name in GIVEN or not (variable or name in named):
            own = ", ".join(sorted(named - set(GIVEN)))
            raise Unusable(f"takes no option {name!r}; it takes {own or 'none'}")
    for name in sorted(named - available - set(options)):
        if parameters[name].default is inspect.Parameter.empty:
            raise Unusable(
                f"needs {name!r}, which is no option and no column, nor one of "
                f"{', '.join(GIVEN)}; set it in the function's options, in data.reward_columns, "
                "or data.answer_column for 'answer'"
            )
    wanted = frozenset((available if variable else named & available) - set(options))
    try:
        signature.bind(**dict.fromkeys(wanted), **options)
    except TypeError as error:
        raise Unusable(f"cannot be called by names: {error}") from None
    return wanted


def _outcome(result: Any) -> Outcome:
    if isinstance(result, str) or not isinstance(result, Sequence):
        result = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(result, list | tuple):
        return Outcome(fault=f"returned {_short(result)}, no list")
    if len(result) != 1:
        return Outcome(fault=f"returned {len(result)} values for 1 completion")
    if result[0] is None:
        return Outcome()
    value = float(result[0])
    if not math.isfinite(value):
        return Outcome(fault=f"returned {value}")
    return Outcome(value=value)


def _short(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
