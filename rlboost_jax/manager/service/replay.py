"""Reading of a journal in a thread, in parts, while the event loop serves requests.

Only one part of it is in memory at a time, besides the state that the parts before made. Every few
milliseconds, between two entries, the event loop does its other work, so that dialling servers are
heard.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from rlboost_jax.manager.journal_entries import Entry
from rlboost_jax.manager.service.journal_files import JournalFiles

PART_BYTES: Final = 2 * 2**20  # of entries that are read ahead
SLICE_SECONDS: Final = 0.01  # that the event loop takes entries in without a pause


async def parts_of(
    journal: JournalFiles, part_bytes: int = PART_BYTES
) -> AsyncIterator[Sequence[Entry]]:
    """Read all entries in order, in parts of about `part_bytes`.

    Raises:
        OtherFormat: this run has a segment that another release wrote.
    """
    entries = journal.entries()

    def some() -> list[Entry]:
        end = journal.read_bytes + part_bytes
        taken: list[Entry] = []
        for entry in entries:
            taken.append(entry)
            if journal.read_bytes >= end:
                break
        return taken

    while part := await asyncio.to_thread(some):
        yield part


async def replay(
    parts: AsyncIterator[Sequence[Entry]],
    restore: Callable[[Entry], None],
    *,
    ends: Callable[[], bool],
    clock: Callable[[], float],
) -> None:
    """Pass the entries to `restore` one by one.

    Args:
        ends: whether what is still to come is of no more use; asked between two parts.
        clock: of the event loop.
    """
    began = clock()
    async for entries in parts:
        for entry in entries:
            restore(entry)
            if clock() - began > SLICE_SECONDS:
                await asyncio.sleep(0)
                began = clock()
        if ends():
            return
        began = clock()
