"""Tools made from functions.

    @tool(idempotent=True)
    def add(a: int, b: int) -> int:
        '''Add two numbers.'''
        return a + b

Name, description and arguments are those of the function. A parameter called `key` gets the call's
own name and is none of the policy's arguments.
"""

import copy
import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, overload

import msgspec

from rlboost_jax.environments.protocol import Tool
from rlboost_jax.environments.results import text_of
from rlboost_jax.platform.mistakes import suggestion

KEY: Final = "key"  # the parameter that gets the call's name
TIME_LIMIT_SECONDS: Final = 60.0


class BadTool(TypeError):
    """A function that cannot be called by name with JSON arguments."""


class BadArguments(ValueError):
    """Arguments that a tool does not accept. The policy reads the message."""


@overload
def tool(
    function: Callable[..., Any],
    /,
    *,
    name: str = "",
    idempotent: bool = False,
    outcome: Callable[[str], str | None] | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Tool: ...
@overload
def tool(
    *,
    name: str = "",
    idempotent: bool = False,
    outcome: Callable[[str], str | None] | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    idempotent: bool = False,
    outcome: Callable[[str], str | None] | None = None,
    time_limit_seconds: float = TIME_LIMIT_SECONDS,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool from a function, plain or `async def`; also as a decorator.

    A result that is no text is converted to JSON (`results.py`). See `Tool` for the
    arguments.

    Raises:
        BadTool: it has arguments without a name, or of types that no JSON stands for.
    """

    def made(function: Callable[..., Any]) -> Tool:
        called = name or getattr(function, "__name__", "")
        if not called:
            raise BadTool(f"{type(function).__name__} has no name; give tool(…, name=…) one")
        takes_key, wanted = _arguments(function, called)
        schema = _schema(wanted)

        def run(arguments: Mapping[str, Any], key: str) -> str | Awaitable[str]:
            given = _checked(arguments, wanted)
            if takes_key:
                given[KEY] = key
            result = function(**given)
            if inspect.isawaitable(result):
                return _awaited(result, called)
            return text_of(result, called)

        return Tool(
            name=called,
            description=inspect.getdoc(function) or "",
            parameters=schema,
            run=run,
            idempotent=idempotent,
            outcome=outcome,
            time_limit_seconds=time_limit_seconds,
        )

    return made if function is None else made(function)


def toolbox(*tools: Tool | Callable[..., Any]) -> dict[str, Tool]:
    """Build an environment's `tools` from tools and functions. Raises BadTool."""
    made = [each if isinstance(each, Tool) else tool(each) for each in tools]
    box = {each.name: each for each in made}
    if len(box) < len(made):
        raise BadTool(f"two of {', '.join(t.name for t in made)} have one name; give them others")
    return box


def _arguments(function: Callable[..., Any], called: str) -> tuple[bool, type[msgspec.Struct]]:
    """Whether the function takes the key, and a record type of all other arguments."""
    try:
        signature = inspect.signature(function)
        annotated = function.func if isinstance(function, functools.partial) else function
        of_object = not (inspect.isroutine(annotated) or isinstance(annotated, type))
        hints = typing.get_type_hints(type(annotated).__call__ if of_object else annotated)
    except (NameError, ValueError, TypeError) as error:
        raise BadTool(f"tool {called!r}: its arguments cannot be read: {error}") from None
    fields: list[Any] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise BadTool(f"tool {called!r}: argument {str(parameter)!r} has no name of its own")
        if name != KEY:
            kind = hints.get(name, Any)
            fields.append((name, kind, *_default(parameter.default)))
    try:
        record = msgspec.defstruct(
            "Arguments", fields, kw_only=True, forbid_unknown_fields=True, frozen=True
        )
        msgspec.json.schema(record)
    except TypeError as error:
        raise BadTool(
            f"tool {called!r} has an argument that no JSON stands for: {_last(error)}"
        ) from None
    return KEY in signature.parameters, record


def _default(value: Any) -> tuple[Any, ...]:
    """Default of a parameter as (value,); () without one.

    Lists and the like are copied for each call.
    """
    if value is inspect.Parameter.empty:
        return ()
    if isinstance(value, list | dict | set) and value:
        return (msgspec.field(default_factory=lambda: copy.deepcopy(value)),)
    return (value,)


def _last(error: Exception) -> str:
    """Last line of a message, which says what is wrong.

    The lines before it are for msgspec's users.
    """
    return str(error).splitlines()[-1]


def _schema(record: type[msgspec.Struct]) -> dict[str, Any]:
    """JSON schema of an object with these arguments, as chat templates take it."""
    (schema,), parts = msgspec.json.schema_components([record])
    own = dict(parts.pop("Arguments", schema))
    for said in ("title", "additionalProperties"):  # of the record, and not to a policy
        own.pop(said, None)
    own["required"] = list(own.get("required", []))
    return {**own, "$defs": parts} if parts else own


def _checked(arguments: Mapping[str, Any], wanted: type[msgspec.Struct]) -> dict[str, Any]:
    """Convert arguments to the function's types. Raises BadArguments."""
    names = wanted.__struct_fields__
    for name in arguments:
        if name not in names:
            hint = suggestion(name, names) if names else "it takes none"
            raise BadArguments(f"no argument {name!r}; {hint}")
    try:
        record = msgspec.convert(dict(arguments), wanted)
    except msgspec.ValidationError as error:
        raise BadArguments(str(error).replace("Object missing required field", "missing")) from None
    return {name: getattr(record, name) for name in names}


async def _awaited(result: Awaitable[Any], called: str) -> str:
    return text_of(await result, called)
