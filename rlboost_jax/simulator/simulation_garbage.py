"""Simulate without the garbage collector, and free what a simulation leaves behind.

What a simulation makes holds no cycles until it is over, and there is much of it: looking for some
takes long. Once it is over its world is one large cycle. While collections are off, all that is
made stays in the youngest generation; so it is enough to look there, and nobody pays for the
objects of the process around, which may be millions.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collections() -> Iterator[None]:
    """Switch garbage collection off within, then restore it and free the garbage made."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
            free()


def free() -> None:
    """Free the garbage made since collections were switched off."""
    gc.collect(0)
