"""Pieces on their way to this host: in place as they come, there once they are verified."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.thread_calls import in_thread
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import check
from rlboost_jax.weights.leaf_arrays import LeafBuffers

CHECKS: Final = 4  # pieces that are hashed at a time
SETTLING_SECONDS: Final = 1.0  # between two signs that it is this host which takes its time


class IncomingPieces:
    """Writes answers of sources into a version's arrays.

    Two answers may have the same piece. The first to begin writes it in place; any other keeps it
    apart until its digest is right, and nothing is written to a piece that is complete.

    Args:
        files: all pieces of the version.
    """

    def __init__(self, files: Sequence[FileEntry], leaves: LeafBuffers) -> None:
        self._files, self._leaves = files, leaves
        self._begun: set[int] = set()  # in place
        self._complete: set[int] = set()
        self._writing: dict[int, threading.Lock] = {}  # by number of a piece
        self._threads = ThreadPoolExecutor(CHECKS, thread_name_prefix="check")

    async def close(self) -> None:
        """Wait for what is being hashed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await in_thread(self._threads.shutdown)

    async def take(
        self, pieces: range, chunks: AsyncGenerator[bytes, None], origin: str
    ) -> AsyncGenerator[tuple[int | None, int], None]:
        """Take an answer with these pieces, one behind the other.

        Yields:
            (None, bytes that have come), of which there are none while this host hashes and takes a
            piece, and (number, size) of a piece that is complete and right.

        Raises:
            WeightsError: one is not what the manifest says.
            ConnectionError: the answer ends early.
        """
        loop, ahead, size = asyncio.get_running_loop(), list(reversed(pieces)), 0
        room, in_place = self._room(ahead[-1])
        async with contextlib.aclosing(chunks):
            async for data in chunks:
                yield None, len(data)
                view = memoryview(data)
                while ahead:
                    number = ahead[-1]
                    entry = self._files[number]
                    taken = view[: entry.size - size]
                    with self._writing[number]:
                        if number not in self._complete:
                            room[size : size + len(taken)] = taken
                    size, view = size + len(taken), view[len(taken) :]
                    if size < entry.size:
                        break
                    settle = partial(self._settle, number, room, in_place, origin)
                    settling = loop.run_in_executor(self._threads, settle)
                    try:
                        while not (await asyncio.wait({settling}, timeout=SETTLING_SECONDS))[0]:
                            yield None, 0
                        settling.result()
                    finally:
                        settling.cancel()
                    yield ahead.pop(), size
                    if not ahead:
                        return
                    size, (room, in_place) = 0, self._room(ahead[-1])
        raise ConnectionError("the answer ended early")

    def _room(self, number: int) -> tuple[memoryview, bool]:
        """Memory for a piece, and whether it is the piece's place."""
        entry = self._files[number]
        self._writing.setdefault(number, threading.Lock())
        if number not in self._begun and (here := self._leaves.in_place(entry)) is not None:
            self._begun.add(number)
            return here, True
        return memoryview(bytearray(entry.size)), False

    def _settle(self, number: int, room: memoryview, in_place: bool, origin: str) -> None:
        """Check a piece whose bytes have come, and put it in its place. Blocks.

        It goes on to its end where the answer is cancelled meanwhile.
        """
        entry = self._files[number]
        if number not in self._complete:
            try:
                check(entry, room, origin)
            except WeightsError:
                # Its place may be free again, where another answer was faster.
                if not in_place or number not in self._complete:
                    raise
        with self._writing[number]:  # also until another answer's bytes are there
            if number in self._complete:
                return
            self._complete.add(number)
            if not in_place:
                self._leaves.put(entry, room)
        self._leaves.verified(entry)
