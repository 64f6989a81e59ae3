"""Pull a version with the help of other servers, and keep its files for them."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from rlboost_jax.messages import PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.outside_pieces import OutsideSource

T = TypeVar("T")
Copy = Callable[[Path, ByteCounter], Awaitable[None]]


async def exchanged(
    peers: PeerExchange,
    root: str,
    pieces: PieceList,
    missing: PieceList,
    outside: OutsideSource,
    retries: Retries,
    counter: ByteCounter,
    read: Callable[[Path], T],
    copy: Copy | None = None,
) -> tuple[T, int]:
    """Bring the missing pieces of a version, and return what `read` makes of their folder.

    Args:
        root: of the version.
        counter: of what comes.
        copy: brings them from a directory that this host sees; None: it sees none.

    Returns:
        That, and the bytes which came from servers of this zone.

    Raises:
        WeightsError: naming what could not be had, and why.
    """
    try:
        version = await peers.held.arrive(root, pieces.files)
        try:
            wanted, near_bytes = set(missing.files), 0
            numbers = {n for n, entry in enumerate(pieces.files) if entry in wanted}
            if copy is None or not await _copied(copy, version.folder, counter):
                near_bytes = await peers.bring(version, numbers, counter, outside, retries)
            peers.held.add(version, sorted(numbers))
            found = await asyncio.to_thread(read, version.folder)
        except BaseException:
            await peers.held.abandon(version)
            raise
        await peers.held.complete(version)
        return found, near_bytes
    except OSError as error:  # of this host: no room, no permission
        raise WeightsError(f"version {root[:12]}…: {error}") from error


async def _copied(copy: Copy, folder: Path, counter: ByteCounter) -> bool:
    try:
        await copy(folder, counter)
    except WeightsError:
        return False  # others have it
    return True
