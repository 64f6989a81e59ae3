"""The verified pieces that a server serves: of the version that it has, and of one that arrives.

They lie in folders of this process, which stay until the version after is complete. What serves
them is told of each piece once its digest was right, and reads it by path. Where pieces are kept
otherwise, this is what changes.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform import durable
from rlboost_jax.weights.peers.piece_orders import DropVersion, Held, Hold, PieceOrder
from rlboost_jax.weights.spool import spooled


@dataclass(eq=False)
class HeldVersion:
    """One version.

    Attributes:
        files: all of its pieces, in the manifest's order.
        held: numbers of those that are there.
        stack: closed to remove the folder.
    """

    root: str
    folder: Path
    files: Sequence[FileEntry]
    held: set[int] = field(default_factory=set)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def order(self) -> Hold:
        return Hold(
            root=self.root,
            folder=str(self.folder),
            paths=tuple(entry.path for entry in self.files),
            sizes=tuple(entry.size for entry in self.files),
        )


class HeldPieces:
    """The versions of one server, two at most. To be used in one event loop.

    Args:
        folder: for their files; None takes memory where there is room.
        tell: is given each order for the process that serves them.
    """

    def __init__(
        self, folder: Path | None = None, tell: Callable[[PieceOrder], None] = lambda order: None
    ) -> None:
        self._folder, self._tell = folder, tell
        self._whole: HeldVersion | None = None
        self._arriving: HeldVersion | None = None

    def orders(self) -> list[PieceOrder]:
        """All that a process has to know that has just begun."""
        found: list[PieceOrder] = []
        for version in (self._whole, self._arriving):
            if version is not None:
                found += [version.order(), Held(root=version.root, numbers=tuple(version.held))]
        return found

    async def arrive(self, root: str, files: Sequence[FileEntry]) -> HeldVersion:
        """Begin a version, in place of any other that has not become complete.

        Pieces that the version before has, too, are there at once.

        Raises:
            OSError: no folder can be made.
        """
        await self._end(self._arriving)
        self._arriving = None
        stack = AsyncExitStack()
        num_bytes = sum(entry.size for entry in files)
        folder = await stack.enter_async_context(spooled(self._folder, num_bytes))
        version = HeldVersion(root, folder, files, stack=stack)
        self._arriving = version
        for parent in {(folder / entry.path).parent for entry in files}:
            parent.mkdir(parents=True, exist_ok=True)
        self._tell(version.order())
        self._link(version)
        return version

    def add(self, version: HeldVersion, numbers: Iterable[int]) -> None:
        """Serve pieces from now on, which are there and verified."""
        if new := [number for number in numbers if number not in version.held]:
            version.held.update(new)
            self._tell(Held(root=version.root, numbers=tuple(new)))

    async def complete(self, version: HeldVersion) -> None:
        """Keep a version until the next is complete; the one before goes."""
        if version is self._arriving:
            before, self._whole, self._arriving = self._whole, version, None
            await self._end(before)

    async def abandon(self, version: HeldVersion) -> None:
        """Remove a version that does not become complete."""
        if version is self._arriving:
            self._arriving = None
            await self._end(version)

    async def close(self) -> None:
        for version in (self._whole, self._arriving):
            await self._end(version)
        self._whole = self._arriving = None

    def _link(self, version: HeldVersion) -> None:
        before = self._whole
        if before is None:
            return
        known = {before.files[number].sha256: before.files[number] for number in before.held}
        linked = []
        for number, entry in enumerate(version.files):
            if (old := known.get(entry.sha256)) is not None and old.size == entry.size:
                durable.link(before.folder / old.path, version.folder / entry.path)
                linked.append(number)
        self.add(version, linked)

    async def _end(self, version: HeldVersion | None) -> None:
        if version is not None:
            self._tell(DropVersion(root=version.root))
            await version.stack.aclose()
