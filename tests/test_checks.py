"""Checks of shapes that are kept: made once for each signature, and for no other one."""

from typing import Any

import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from tests.checks import keep


def test_each_signature_is_checked_by_its_own():
    def function(shape: str, result: str, default: Any = None) -> Any:
        @jaxtyped(typechecker=beartype)
        def inner(x: Float[Array, shape], y: Any = default) -> Float[Array, result]:
            return x[:1]

        return inner

    for default in (None, jnp.ones(2)):  # the other one's signature cannot be hashed
        for _ in range(2):
            function("a", "b", default)(jnp.ones(3))
            function("a b", "c b", default)(jnp.ones((3, 2)))
            for wrong in (function("a b", "c b", default), function("a", "a", default)):
                with pytest.raises(TypeCheckError, match="Type-check error whilst"):
                    wrong(jnp.ones(3))


def test_a_function_that_is_defined_again_is_not_made_again():
    made: list[Any] = []

    def make(*about: Any) -> Any:
        made.append(about)
        return lambda: about

    make_once, check_once = keep(make, lambda checker, function: checker(function))
    first, again = (make_once("f", "g.f", "m", "(x)", False) for _ in range(2))
    others = [make_once("f", "g.f", "m", *which) for which in (("(y)", False), ("(x)", True))]
    unhashable = [make_once("f", "g.f", "m", [], False) for _ in range(2)]
    assert first is again and first not in others
    assert len(made) == 3 + len(unhashable)

    def wrap(function: Any) -> Any:
        return lambda: function

    assert check_once(wrap, first) is check_once(wrap, again)
    assert check_once(wrap, others[0]) is not check_once(wrap, first)
