"""Validation of what environments return, before anything is built on it."""

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from rlboost_jax.chat.formats.objects import arguments_of
from rlboost_jax.environments.protocol import Message, Observation, Step

ROLES: Final = ("system", "user", "tool", "assistant")
LONG_TEXT: Final = 2**20  # characters that are always looked at
MOST_PER_TOKEN: Final = 64  # characters, in a text of many tokens
_SHOWN: Final = 80  # characters of what is wrong
_TEXTS: Final = ("role", "content", "name", "tool_call_id", "reasoning_content")


class BadObservation(ValueError):
    """A value that is no observation; the message says why."""


def checked_observation(value: Any, *, first: bool) -> Observation:
    """Validate an observation.

    Args:
        first: it is what an episode begins with, so that assistants may have said something.

    Raises:
        BadObservation
    """
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, np.ndarray):
        if value.ndim != 1 or value.dtype.kind not in "iu":
            raise BadObservation(
                f"token ids are one row of integers, not {value.dtype} {value.shape}"
            )
        ids = value.astype(np.int64)
        if len(ids) and not (np.min(ids) >= 0 and np.max(ids) < 2**31):
            raise BadObservation(f"token ids go from 0 to {2**31 - 1}; there is {np.min(ids)}")
        return value.astype(np.int32)
    if isinstance(value, list | tuple):
        return tuple(_message(message, first) for message in value)
    raise BadObservation(
        f"{type(value).__name__} is no observation; give a text, messages, or an array of token ids"
    )


def checked_step(value: Any) -> Step:
    """Validate a step. Raises BadObservation."""
    if not isinstance(value, Step):
        raise BadObservation(f"step returned {type(value).__name__}; it returns a Step")
    reward = _number("reward", value.reward)
    if not isinstance(value.metrics, Mapping):
        raise BadObservation(f"metrics are {type(value.metrics).__name__}, no mapping by name")
    metrics = {str(name): _number(f"metrics[{name!r}]", m) for name, m in value.metrics.items()}
    observation = checked_observation(value.observation, first=value.anew)
    return Step(
        observation=observation,
        reward=reward,
        done=_flag("done", value.done),
        metrics=metrics,
        anew=_flag("anew", value.anew),
    )


def is_beyond(observations: Iterable[Observation], room: int) -> bool:
    """Whether texts are longer than `room` tokens can be, by a wide margin.

    A tokenizer would take minutes and gigabytes to find that out.
    """
    most = max(LONG_TEXT, room * MOST_PER_TOKEN)
    return sum(map(_characters, observations)) > most


def _characters(observation: Observation) -> int:
    if isinstance(observation, str):
        return len(observation)
    if isinstance(observation, np.ndarray):
        return 0  # tokens already
    return sum(len(message.get("content", "")) for message in observation)


def is_empty(observation: Observation) -> bool:
    """Whether an observation says nothing."""
    return len(observation) == 0


def _number(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadObservation(f"{name} is {value!r}; it is a number") from None
    except OverflowError:
        raise BadObservation(f"{name} is an integer beyond all floats") from None
    if not math.isfinite(number):
        raise BadObservation(f"{name} is {number}; it is a finite number")
    return number


def _flag(name: str, value: Any) -> bool:
    """Check that a flag is a bool: a text such as "False" would count as true."""
    if isinstance(value, str | bytes) or np.ndim(value):
        raise BadObservation(f"{name} is {value!r}; it is True or False")
    return bool(value)


def _message(value: Any, first: bool) -> Message:
    if not isinstance(value, Mapping):
        raise BadObservation(f"{type(value).__name__} is no message; give a dictionary with a role")
    roles = ROLES if first else ROLES[:-1]
    if value.get("role") not in roles:
        raise BadObservation(f"role {value.get('role')!r} of a message; known: {', '.join(roles)}")
    message: dict[str, Any] = {}
    for name, part in value.items():
        if part is None:
            continue  # it says nothing
        if name in _TEXTS:
            if not isinstance(part, str):
                raise BadObservation(f"{name!r} of a message is {type(part).__name__}, no text")
            message[name] = _text(part)
        elif (
            name == "tool_calls" and isinstance(part, list | tuple) and value["role"] == "assistant"
        ):
            message[name] = [_call(call, f"tool_calls[{i}]") for i, call in enumerate(part)]
        else:
            raise BadObservation(f"{name!r} is no part of a message of role {value['role']!r}")
    message.setdefault("content", "")
    return Message(**message)  # type: ignore[typeddict-item]


def _text(value: str) -> str:
    """Remove halves of surrogate pairs, which file names contain and no frame can carry."""
    return value.encode(errors="backslashreplace").decode()


def _call(value: Any, place: str) -> dict[str, Any]:
    """Validate a call of an assistant's message, in the form chat templates take.

    Its arguments are an object, or the text of one.
    """
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadObservation(
            'a call of a message is {"function": {"name": …, "arguments": …}}, not '
            f"{str(value)[:_SHOWN]}"
        )
    given = function.get("arguments")
    arguments, problem = arguments_of(given)
    if problem:
        raise BadObservation(f"{place}.function.arguments of a message are {problem}")
    return {**value, "function": {**function, "arguments": given if arguments else {}}}
