"""Pieces on their way to this host: written as they come, there once they are verified."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.weights.arrivals import check_file

CHECKS: Final = 4  # pieces that are hashed at a time


class IncomingPieces:
    """Writes answers of sources into a version's folder.

    Args:
        files: all pieces of the version.
    """

    def __init__(self, files: Sequence[FileEntry], folder: Path) -> None:
        self._files, self._folder, self._answers = files, folder, 0
        self._threads = ThreadPoolExecutor(CHECKS, thread_name_prefix="check")

    async def close(self) -> None:
        """Wait for what is being hashed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._threads.shutdown)

    async def take(
        self, pieces: range, chunks: AsyncGenerator[bytes, None], origin: str
    ) -> AsyncGenerator[tuple[int | None, int], None]:
        """Write an answer with these pieces, one behind the other.

        Two answers may have the same piece: each has a file of its own, which gets its name once
        its digest is right.

        Yields:
            (None, bytes that have come), and (number, size) of a piece that is complete and right.

        Raises:
            WeightsError: one is not what the manifest says.
            ConnectionError: the answer ends early.
        """
        loop = asyncio.get_running_loop()
        self._answers += 1
        part, ahead = self._folder / f".part-{self._answers}", list(reversed(pieces))
        size, file = 0, part.open("wb", buffering=0)
        try:
            async with contextlib.aclosing(chunks):
                async for data in chunks:
                    yield None, len(data)
                    view = memoryview(data)
                    while ahead:
                        entry = self._files[ahead[-1]]
                        taken = view[: entry.size - size]
                        file.write(taken)
                        size, view = size + len(taken), view[len(taken) :]
                        if size < entry.size:
                            break
                        file.close()
                        await loop.run_in_executor(self._threads, check_file, entry, part, origin)
                        part.replace(self._folder / entry.path)
                        yield ahead.pop(), size
                        size, file = 0, part.open("wb", buffering=0)
                    if not ahead:
                        return
            raise ConnectionError("the answer ended early")
        finally:
            file.close()
            part.unlink(missing_ok=True)
