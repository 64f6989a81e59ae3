"""Tools by name, as settings name them: built-in ones, and a user's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from rlboost_jax.environments.builtin.calculator import calculator
from rlboost_jax.environments.builtin.python_tool import PythonTool
from rlboost_jax.environments.builtin.search_tool import search_tools
from rlboost_jax.environments.protocol import Tool, Turn
from rlboost_jax.environments.tools import BadTool, tool
from rlboost_jax.platform.mistakes import suggestion
from rlboost_jax.platform.outside_code import CodeNotFound, imported


@dataclass(frozen=True, kw_only=True)
class Toolset:
    """Tools of one episode.

    Attributes:
        remember: receives each turn, with its results.
    """

    tools: tuple[Tool, ...]
    remember: Callable[[Turn], None] = lambda turn: None


def _python(**options: Any) -> Toolset:
    interpreter = PythonTool(**options)
    return Toolset(tools=(interpreter.tool,), remember=interpreter.remember)


BUILT_IN_TOOLS: Final[Mapping[str, Callable[..., Toolset]]] = MappingProxyType(
    {
        "calculator": lambda: Toolset(tools=(calculator,)),
        "python": _python,
        "search": lambda **options: Toolset(tools=search_tools(**options)),
    }
)


def toolset(name: str, options: Mapping[str, Any]) -> Toolset:
    """Build the tools of a name.

    Args:
        name: built in, or "package.module:function", a function or a Tool.
        options: of one built in.

    Raises:
        BadTool: there is none, or it takes other options.
    """
    if name in BUILT_IN_TOOLS:
        try:
            return BUILT_IN_TOOLS[name](**options)
        except TypeError as error:
            raise BadTool(f"tool {name!r}: {error}") from None
    if ":" not in name:
        hint = suggestion(name, BUILT_IN_TOOLS)
        raise BadTool(f"there is no tool {name!r}; {hint}; yours is 'package.module:function'")
    if options:
        raise BadTool(f"tool {name!r} is one of your own and takes no options")
    try:
        found = imported(name)
    except CodeNotFound as error:
        raise BadTool(f"tool {name!r} {error}") from None
    return Toolset(tools=(found if isinstance(found, Tool) else tool(found),))
