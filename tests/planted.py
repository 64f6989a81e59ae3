"""Mistakes put into the product on purpose, to show that a check or a suite finds them.

For these and nothing else. What a test needs of the world is a parameter of what it tests, or is
made real. A mistake that nothing has come to shows nothing: it is an error of its test.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import getattr_static
from typing import Any

import pytest

Plant = Callable[[Any, str, Any], None]  # `planted` until the end of the test: the fixture `plant`


@contextmanager
def planted(owner: Any, name: str, defect: Any) -> Iterator[None]:
    """Have a mistake in place of what is right.

    It is one of this process: what others do does not count as having come to it.

    Args:
        owner, name: class or module, and the attribute of it that is wrong meanwhile.
        defect: a function, a property, or a value. A value is not known to have been read.

    Raises:
        AttributeError: there is no such attribute.
        ValueError: the defect is what is there.
        AssertionError: nothing has called it.
    """
    if getattr_static(owner, name) is defect:
        raise ValueError(f"{name} of {owner!r} is that already; plant something that is wrong")
    calls: list[None] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, _noted(defect, calls))
        yield
    counted = callable(defect) or isinstance(defect, property)
    assert calls or not counted, f"nothing came to the mistake planted as {name} of {owner!r}"


def _noted(defect: Any, calls: list[None]) -> Any:
    """The same, with an entry for each call."""
    if isinstance(defect, property):
        return property(_noted(defect.fget, calls))
    if not callable(defect):
        return defect

    @functools.wraps(defect)
    def noted(*args: Any, **options: Any) -> Any:
        calls.append(None)
        return defect(*args, **options)

    return noted
