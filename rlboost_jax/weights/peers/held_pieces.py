"""The verified pieces that a server serves: of the version that it has, and of one that arrives.

A piece is a part of an array in memory that the process which serves it maps, too. It is told of
each once its digest was right. A version's arrays stay until the version after is complete.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import numpy as np

from rlboost_jax.messages import FileEntry, PieceList
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.leaf_cache import files_by_leaf, put_leaf, without
from rlboost_jax.weights.peers.piece_orders import DropVersion, Held, Hold, PieceOrder, Place
from rlboost_jax.weights.peers.shared_blocks import SharedBlock, block_of, empty

Tell = Callable[[PieceOrder, Sequence[SharedBlock]], None]


class HeldVersion:
    """One version.

    Args:
        pieces: all of it.
        missing: the part to be brought, but for what is shared.
        before: whose leaves it shares where their files are the same; None: it shares none.
        serves: whether a process is to map the arrays.

    Attributes:
        shared: arrays of the leaves that it shares, by name.
        leaves: those to be brought.
        held: numbers of the pieces that are there.

    Raises:
        OSError: there is no memory.
        WeightsError: see `LeafBuffers`.
    """

    def __init__(
        self,
        root: str,
        pieces: PieceList,
        missing: PieceList,
        before: "HeldVersion | None",
        serves: bool,
    ) -> None:
        self.root, self.files, self.held = root, pieces.files, set[int]()
        self.numbers = {entry.path: number for number, entry in enumerate(pieces.files)}
        self._pieces = pieces
        self.serves, self.shared = serves, {} if before is None else before._leaves_of(pieces)
        missing = without(missing, self.shared)
        self.leaves = LeafBuffers(missing, empty) if serves else LeafBuffers(missing)
        self.arrays = {**self.shared, **self.leaves.arrays}
        self.chunks = dict(self.leaves.chunks)
        if before is not None:
            self._share(before)

    def lacking(self) -> tuple[FileEntry, ...]:
        """Pieces that are still to be brought."""
        files = self.leaves.pieces.files
        return tuple(entry for entry in files if self.numbers[entry.path] not in self.held)

    def params(self) -> dict[str, Any]:
        """The arrays as a nested dict, once all pieces have been verified."""
        params: dict[str, Any] = {}
        for name, array in self.arrays.items():
            put_leaf(params, name, array)
        return params

    def order(self) -> tuple[Hold, list[SharedBlock]]:
        """The order to serve it, and the blocks that it is in."""
        blocks: dict[int, SharedBlock] = {}
        places = []
        for entry in self.files:
            chunk = np.atleast_1d(self.chunks[entry.path]).view(np.uint8)
            block = block_of(chunk)
            blocks[block.number] = block
            begin = np.frombuffer(block, np.uint8).ctypes.data
            places.append(
                Place(
                    block=block.number,
                    offset=chunk.ctypes.data - begin,
                    shape=chunk.shape,
                    strides=chunk.strides,
                )
            )
        return Hold(root=self.root, blocks=tuple(blocks), places=tuple(places)), [*blocks.values()]

    def _leaves_of(self, pieces: PieceList) -> dict[str, np.ndarray]:
        """Leaves that are the same in another version, by name."""
        here, there = files_by_leaf(self._pieces), files_by_leaf(pieces)
        known = {leaf.name: leaf for leaf in self._pieces.leaves}
        return {
            leaf.name: self.arrays[leaf.name]
            for leaf in pieces.leaves
            if known.get(leaf.name) == leaf and here.get(leaf.name) == there.get(leaf.name)
        }

    def _share(self, before: "HeldVersion") -> None:
        """Take over pieces of another version: as they are within leaves, else as copies."""
        theirs = {before.files[number].path: before.files[number] for number in before.held}
        for number, entry in enumerate(self.files):
            if theirs.get(entry.path) != entry:
                continue
            if entry.path.rpartition("/")[0] in self.shared:
                self.chunks[entry.path] = before.chunks[entry.path]
            elif entry.path in self.leaves.others:
                self.leaves.put(entry, before.chunks[entry.path])
            else:
                continue
            self.held.add(number)


class HeldPieces:
    """The versions of one server, two at most. To be used in one event loop.

    Args:
        tell: is given each order for the process that serves them, and the blocks that it names;
            None: there is no such process, and a version that is complete is held no more.
    """

    def __init__(self, tell: Tell | None = None) -> None:
        self._serves, self._tell = tell is not None, tell or (lambda order, blocks: None)
        self._whole: HeldVersion | None = None
        self._arriving: HeldVersion | None = None

    def orders(self) -> list[tuple[PieceOrder, Sequence[SharedBlock]]]:
        """All that a process has to know that has just begun."""
        found: list[tuple[PieceOrder, Sequence[SharedBlock]]] = []
        for version in (self._whole, self._arriving):
            if version is not None:
                found.append(version.order())
                found.append((Held(root=version.root, numbers=tuple(version.held)), ()))
        return found

    async def arrive(self, root: str, pieces: PieceList, missing: PieceList) -> HeldVersion:
        """Begin a version, in place of any other that has not become complete.

        Args:
            missing: the part that is to be brought where nobody is served.

        Raises:
            OSError: there is no memory.
            WeightsError: the pieces are not those of arrays.
        """
        self._end(self._arriving)
        self._arriving = None
        if self._serves:  # leaves that this process has are in the version before, or brought again
            missing = pieces
        version = await asyncio.to_thread(
            HeldVersion, root, pieces, missing, self._whole, self._serves
        )
        self._arriving = version
        if self._serves:
            self._tell(*version.order())
            self._tell(Held(root=root, numbers=tuple(version.held)), ())
        return version

    def add(self, version: HeldVersion, files: Iterable[FileEntry]) -> None:
        """Serve pieces from now on, which are there and verified."""
        if new := {version.numbers[entry.path] for entry in files} - version.held:
            version.held.update(new)
            self._tell(Held(root=version.root, numbers=tuple(new)), ())

    def add_complete(self, version: HeldVersion) -> tuple[FileEntry, ...]:
        """Serve the pieces that its arrays have by now; returns those that are lacking still."""
        complete = version.leaves.complete
        self.add(version, (e for e in version.leaves.pieces.files if e.path in complete))
        return version.lacking()

    @contextlib.asynccontextmanager
    async def arriving(
        self, root: str, pieces: PieceList, missing: PieceList
    ) -> AsyncIterator[HeldVersion]:
        """Begin a version, see `arrive`. It is kept if nothing is raised, and else abandoned."""
        version = await self.arrive(root, pieces, missing)
        try:
            yield version
        except BaseException:
            if version is self._arriving:
                self._arriving = None
                self._end(version)
            raise
        self.complete(version)

    def complete(self, version: HeldVersion) -> None:
        """Keep a version until the next is complete; the one before goes."""
        if version is self._arriving:
            before, self._whole = self._whole, version if self._serves else None
            self._arriving = None
            self._end(before)

    def close(self) -> None:
        for version in (self._whole, self._arriving):
            self._end(version)
        self._whole = self._arriving = None

    def _end(self, version: HeldVersion | None) -> None:
        if version is not None:
            self._tell(DropVersion(root=version.root), ())
