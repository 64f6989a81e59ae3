"""Reward functions by name, and one call of a function."""

import asyncio
import inspect
import math
import os
import traceback
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from rlboost_jax.platform.mistakes import install
from rlboost_jax.platform.outside_code import CodeNotFound, imported
from rlboost_jax.rewards.builtin import BUILT_IN
from rlboost_jax.rewards.reward_frames import Found, RewardJob, RewardOutcome, all_failed
from rlboost_jax.settings.rewards_config import RewardConfig
from rlboost_jax.settings.validation.data_checks import GIVEN

Call = Callable[[RewardJob], Found]

_SHOWN: Final = 200  # characters of an exception


class Unusable(ValueError):
    """A function cannot be used as it is configured; the message says why."""


def load(reward: RewardConfig, columns: Collection[str]) -> Call:
    """Load a function as a callable that takes a job and never raises an Exception.

    A coroutine function runs in an event loop that is made for the call.

    Args:
        columns: of the data set, that every job has.

    Raises:
        Unusable
    """
    path = BUILT_IN.get(reward.name, reward.name)
    try:
        function = imported(path)
    except CodeNotFound as error:
        hint = f"; {install('math')}" if reward.name == "math" else ""
        raise Unusable(f"{error}{hint}") from error
    if reward.name in BUILT_IN:
        _check_types(function, reward.options)
    wanted = _wanted(function, reward.options, columns)
    awaited = inspect.iscoroutinefunction(function)
    if awaited and not reward.max_concurrent:
        raise Unusable(
            "is a coroutine function (async def); set its max_concurrent in rewards.functions to "
            "how many of its calls may wait side by side"
        )
    if reward.name in BUILT_IN:
        _try(function, reward.options, wanted)

    def call(job: RewardJob) -> Found:
        count = len(job.responses)
        given = {
            "prompts": [job.prompt] * count,
            "completions": [response.completion for response in job.responses],
            "completion_ids": [list(response.completion_ids) for response in job.responses],
            "finished": [response.finished for response in job.responses],
        }
        every = {**{name: [value] * count for name, value in job.columns.items()}, **given}
        listed = {name: values for name, values in every.items() if name in wanted}
        try:
            result = function(**listed, **reward.options)
            return _found(asyncio.run(result) if awaited else result, job)
        except MemoryError:
            return all_failed(job, "MemoryError: more than rewards.memory_mb")
        except (Exception, asyncio.CancelledError) as error:  # the user's: costs this job only
            text = f"{type(error).__name__}: {error}"[:_SHOWN]
            text += "" if reward.name in BUILT_IN else _place(error, function)
            return all_failed(job, text.encode(errors="backslashreplace").decode())

    return call


def _place(error: BaseException, function: Callable[..., Any]) -> str:
    """Where an exception was raised, such as " (my_rewards.py, line 12)".

    The innermost line of the function's own file counts; "" if the exception never was there.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    file = code.co_filename if code else ""
    frames = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in frames if frame.f_code.co_filename == file]
    return f" ({os.path.basename(file)}, line {lines[-1]})" if lines else ""


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
    """Raise Unusable if a built-in function rejects its options, called with no response."""
    try:
        function(**{name: [] for name in wanted}, **options)
    except Exception as error:  # of whatever kind, it would be the same for every response
        raise Unusable(f"cannot be used with its options: {error}") from None


def _wanted(
    function: Callable[..., Any], options: Mapping[str, Any], columns: Collection[str]
) -> frozenset[str]:
    """Given names that a function accepts; all arguments are passed by name."""
    if not callable(function):
        raise Unusable("is no function")
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


def _found(result: Any, job: RewardJob) -> Found:
    """Convert a function's result. Raises what a value that is no number raises."""
    if isinstance(result, str) or not isinstance(result, Sequence):
        result = result.tolist() if hasattr(result, "tolist") else result
    if not isinstance(result, list | tuple):
        return all_failed(job, f"returned {_short(result)}, no list")
    count = len(job.responses)
    if len(result) != count:
        of = "1 completion" if count == 1 else f"{count} completions"
        values = f"{len(result)} value{'s' * (len(result) != 1)}"
        return all_failed(job, f"returned {values} for {of}{_hint(job, len(result))}")
    return tuple(_outcome(value) for value in result)


def _hint(job: RewardJob, values: int) -> str:
    return ' (per="group" gives it all at once)' if job.per == "group" and values == 1 else ""


def _outcome(value: Any) -> RewardOutcome:
    if value is None:
        return RewardOutcome()
    number = float(value)
    return (
        RewardOutcome(value=number)
        if math.isfinite(number)
        else RewardOutcome(fault=f"returned {number}")
    )


def _short(value: Any) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"
