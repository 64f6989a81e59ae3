"""The collector of cyclic garbage looks seldom while a process sets itself up.

Imports and traced programs are millions of objects that stay. The collector walks them again and
again: it took 0.9 of the 8 s of a core that the whole of a short run's trainer takes, and 0.25
where it looks after 50,000 new objects in place of 700. Steps have the usual threshold: what lies
in a cycle then may hold arrays.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

OBJECTS: Final = 50_000  # made and still there, until the collector looks at the youngest


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Let the collector run only every `OBJECTS` objects within, or more seldom if it already did.

    What was made in it, and is still there, is never looked at again where it ends well.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], OBJECTS) if before[0] else 0, *before[1:])  # 0: it is off
    try:
        yield
        gc.freeze()  # modules and programs stay; a collector that walks them holds up steps
    finally:
        gc.set_threshold(*before)
