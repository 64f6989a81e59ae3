"""Pull a version with the help of other servers, and keep its files for them."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, check_file
from rlboost_jax.weights.connections import Retries
from rlboost_jax.weights.leaf_arrays import read_params
from rlboost_jax.weights.peers.exchange import PeerExchange
from rlboost_jax.weights.peers.outside_pieces import OutsideSource


async def exchanged(
    peers: PeerExchange,
    root: str,
    pieces: PieceList,
    missing: PieceList,
    outside: OutsideSource,
    retries: Retries,
    counter: ByteCounter,
    directory: Path | None = None,
) -> tuple[dict[str, Any], int]:
    """Bring the missing pieces of a version, and return the arrays that they are of.

    Args:
        root: of the version.
        counter: of what comes.
        directory: that has them on the trainer's host, which this one may be; None: not to be used.

    Returns:
        The arrays as a nested dict, and the bytes that came from servers of this zone.

    Raises:
        WeightsError: naming what could not be had, and why.
    """
    try:
        version = await peers.held.arrive(root, pieces.files)
        try:
            wanted, near_bytes = set(missing.files), 0
            numbers = {n for n, entry in enumerate(pieces.files) if entry in wanted}
            here = directory is not None and await asyncio.to_thread(
                _copied, directory, missing.files, version.folder, counter
            )
            if not here:
                near_bytes = await peers.bring(version, numbers, counter, outside, retries)
            peers.held.add(version, sorted(numbers))
            params = await asyncio.to_thread(read_params, version.folder, missing)
        except BaseException:
            await peers.held.abandon(version)
            raise
        await peers.held.complete(version)
        return params, near_bytes
    except OSError as error:  # of this host: no room, no permission
        raise WeightsError(f"version {root[:12]}…: {error}") from error


def _copied(
    directory: Path, files: Sequence[FileEntry], folder: Path, counter: ByteCounter
) -> bool:
    """Copy files that this host sees, verified; False: it does not, or they are not right."""
    try:
        for entry in files:
            (folder / entry.path).unlink(
                missing_ok=True
            )  # of the version before, if it is the same
            shutil.copyfile(directory / entry.path, folder / entry.path)
            check_file(entry, folder / entry.path, str(directory))
            counter.add(entry.size)
    except (OSError, WeightsError):
        return False
    return True
