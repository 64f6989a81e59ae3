"""Calls as JSON objects, which most formats wrap in marks of their own."""

import json
import math
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rlboost_jax.environments.protocol import ToolCall

ARGUMENTS: Final = ("arguments", "parameters")  # OpenAI's word, and Llama's
MOST_SHOWN: Final = 60  # characters of what could not be read
MOST_DEPTH: Final = 64  # of lists and objects in one another
_LEAST: Final = -(2**63)  # whole number that frames between processes take
_MOST: Final = 2**64 - 1


class TurnParts(NamedTuple):
    """Text and calls of a turn, without its thinking."""

    text: str  # without the calls; broken ones stay
    calls: tuple[ToolCall, ...]


class Decoded(NamedTuple):
    """A JSON value and where it ends; or why there is none."""

    value: Any
    end: int
    problem: str


def decoded(text: str, start: int) -> Decoded:
    """Decode the JSON value that begins at `start`.

    An object that has a key twice is refused, since nobody knows which was meant; so are
    numbers and strings that are none in JSON's own standard (NaN, half a surrogate pair), and
    what cannot be handed on (`unsendable`).
    """
    try:
        value, end = _DECODER.raw_decode(text, start)
        # A text with half a surrogate pair cannot be written to any file or wire.
        json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        shown = text[error.pos : error.pos + MOST_SHOWN]
        return Decoded(None, start, f"no JSON: {error.msg} at {shown!r}")
    except RecursionError:
        return Decoded(None, start, "no JSON: nested too deeply")
    except ValueError as error:  # UnicodeEncodeError, too
        return Decoded(None, start, f"no JSON: {error}")
    if problem := unsendable(value):
        return Decoded(None, start, problem)
    return Decoded(value, end, "")


def unsendable(value: Any) -> str:
    """Why a JSON value cannot be sent to the process that runs the call; "" if it can."""
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        for each in level:
            if isinstance(each, int) and not _LEAST <= each <= _MOST:
                return f"{_shown(each)} has more than 64 bits; write it as a text"
        level = [
            inner
            for each in level
            if isinstance(each, Mapping | list | tuple)
            for inner in (each.values() if isinstance(each, Mapping) else each)
        ]
        if not level:
            return ""
    return f"nested too deeply: more than {MOST_DEPTH} lists and objects in one another"


def call_of(value: Any) -> ToolCall:
    """Convert a JSON value to a call, perhaps a broken one."""
    if not isinstance(value, Mapping):
        return broken(f"a call is an object with a name, not {_shown(value)}")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return broken(f"the call has no name: {_shown(value)}")
    given: Any = next((value[key] for key in ARGUMENTS if key in value), {})
    arguments, problem = arguments_of(given)
    if problem:
        return broken(f"the arguments are {problem}", name)
    identity = value.get("id")
    return ToolCall(
        name=name, arguments=arguments, id=identity if isinstance(identity, str) else ""
    )


def arguments_of(given: Any) -> tuple[Mapping[str, Any], str]:
    """Return the arguments of a call and "", or {} and the reason why there are none.

    Args:
        given: an object, or the text of one as OpenAI's protocol has them. Nothing at all (None, a
            blank text) is a call without arguments.
    """
    if isinstance(given, str):
        start = after_spaces(given, 0)
        if start == len(given):
            return {}, ""
        inner = decoded(given, start)
        if inner.problem or given[inner.end :].strip():
            return {}, inner.problem or "more than one value"
        given = inner.value
    elif problem := unsendable(given):
        return {}, problem
    if given is None:
        return {}, ""
    if not isinstance(given, Mapping):
        return {}, f"no object but {_shown(given)}"
    return given, ""


def broken(problem: str, name: str = "") -> ToolCall:
    return ToolCall(name=name, arguments={}, problem=problem)


def is_call(value: Any) -> bool:
    """Whether an object requests a call rather than being an answer in JSON."""
    return isinstance(value, Mapping) and "name" in value and any(k in value for k in ARGUMENTS)


def after_spaces(text: str, start: int) -> int:
    """Position of the next character that is no space."""
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:MOST_SHOWN]!r} stands there twice")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object, parse_float=_finite, parse_constant=_no_constant
)
