"""Environments by name: built-in ones, and a user's own."""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rlboost_jax.environments.protocol import Environment
from rlboost_jax.platform.mistakes import ConfigError, suggestion
from rlboost_jax.platform.outside_code import CodeNotFound, imported
from rlboost_jax.settings.validation.environment_checks import BUILT_IN_ENVIRONMENTS, name_mistakes

Make = Callable[[], Environment]


def maker_of(name: str, options: Mapping[str, Any]) -> Make:
    """Find the factory that makes an environment for each episode.

    Args:
        name: built in, or "package.module:factory".
        options: arguments of the factory, by name.

    Raises:
        ConfigError: there is no such factory, it cannot be imported, or takes other arguments.
    """
    if mistakes := list(name_mistakes(name)):
        raise ConfigError("\n".join(mistakes))
    factory = _imported(name, BUILT_IN_ENVIRONMENTS.get(name, name))
    _check_options(name, factory, options)

    def make() -> Environment:
        made: Environment = factory(**options)
        return made

    return make


def check_made(name: str, environment: object) -> None:
    """Raise ConfigError if what a factory made is no environment."""
    for method in ("reset", "step"):
        if not callable(getattr(environment, method, None)):
            raise ConfigError(
                f"environment.name {name!r} makes {type(environment).__name__}, which has no "
                f"{method}(); an environment has reset and step"
            )


def _imported(name: str, path: str) -> Callable[..., Any]:
    try:
        found = imported(path)
    except CodeNotFound as error:
        raise ConfigError(f"environment.name {name!r} {error}") from error
    if not callable(found):
        raise ConfigError(
            f"environment.name {name!r} is {type(found).__name__}, which makes nothing; name a "
            "class or a function"
        )
    factory: Callable[..., Any] = found
    return factory


def _check_options(name: str, factory: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Raise ConfigError if the factory takes other arguments, or others of a plain type."""
    try:
        signature = inspect.signature(factory, eval_str=True)
    except (TypeError, ValueError, NameError):  # of some written in C, or with types for checkers
        return
    parameters = signature.parameters
    kinds = {p.kind for p in parameters.values()}
    named = {
        n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    }
    for option, value in options.items():
        if option not in named:
            if inspect.Parameter.VAR_KEYWORD in kinds:
                continue
            hint = suggestion(option, named) if named else "it takes none"
            raise ConfigError(f"environment.options: {name!r} takes no {option!r}; {hint}")
        if named[option].annotation in (bool, int, float, str):
            try:
                msgspec.convert(value, named[option].annotation)
            except msgspec.ValidationError as error:
                raise ConfigError(
                    f"environment.options: {option} is {value!r}: {str(error).lower()}"
                ) from None
    for option, parameter in named.items():
        if option not in options and parameter.default is inspect.Parameter.empty:
            raise ConfigError(
                f"environment.options: {name!r} needs {option!r}; set environment.options"
            )
