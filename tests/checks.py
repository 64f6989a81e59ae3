"""Checks of shapes that are made once for each function, and not again wherever it is defined.

jaxtyping writes, compiles and decorates two functions for each that it checks: 2 ms. A function
within another is defined at every call of that one, and for a response that the collector takes,
or an array that is packed, there was one. They are kept by name and signature.
"""

from collections.abc import Callable
from inspect import Signature
from typing import Any

from jaxtyping import _decorator as jaxtyping

Checker = Callable[..., Any]


def keep(make: Callable[..., Any], check: Callable[[Any, Checker], Checker]) -> tuple[Any, Any]:
    """The same two functions, which remember what they have made.

    Args:
        make: from a function's names and signature, one without a body.
        check: decorates it with a type checker.
    """
    made: dict[tuple[Any, ...], Any] = {}
    checked: dict[tuple[Any, Checker], Checker] = {}

    def make_once(name: str, qualname: str, module: str, signature: Signature, output: bool) -> Any:
        key = (name, qualname, module, signature, output)
        try:
            known = key in made
        except TypeError:  # a default that cannot be hashed, as arrays cannot
            return make(name, qualname, module, signature, output)
        if not known:
            made[key] = make(name, qualname, module, signature, output)
        return made[key]

    def check_once(checker: Any, function: Checker) -> Checker:
        key = (checker, function)
        if key not in checked:
            checked[key] = check(checker, function)
        return checked[key]

    return make_once, check_once


def save() -> None:
    """Save repeated work of type checks, from now on in this process."""
    ours = keep(jaxtyping._make_fn_with_signature, jaxtyping._apply_typechecker)
    jaxtyping._make_fn_with_signature, jaxtyping._apply_typechecker = ours
