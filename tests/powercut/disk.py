"""What a disk may hold after a power cut, as POSIX has it.

Of a file, whatever was done to it before its last sync is there; of a folder, the names that it had
when it was synced last. Of what was done since, any part may be there: all, nothing, some of the
writes and half of one, the size without the bytes. Names and what lies behind them are independent:
a new file may have its bytes and no name, or its name and no bytes. One rename within a folder is
one change: the old name is gone if and only if the new one is there.
"""

import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Literal, assert_never

from tests.powercut.operations import Kind, Operation

SECTOR = 512  # bytes that are there or not
Loss = Literal["all", "data", "names", "zeros", "tails", "any"]
LOSSES: Sequence[Loss] = ("all", "data", "names", "zeros", "tails", "any")


@dataclass
class File:
    """Changes are (offset, data), or (size, None) where it was cut off or made longer."""

    changes: list[tuple[int, bytes | None]] = field(default_factory=list)
    synced: int = 0  # of the changes


@dataclass
class Folder:
    """A change sets names: to what they lead to, or None where they are gone."""

    changes: list[dict[str, "Node | None"]] = field(default_factory=list)
    synced: int = 0
    names: dict[str, "Node"] = field(default_factory=dict)  # after all changes

    def change(self, **names: "Node | None") -> None:
        self.changes.append(names)
        for name, node in names.items():
            if node is None:
                self.names.pop(name, None)
            else:
                self.names[name] = node


@dataclass(frozen=True)
class Link:
    target: str


Node = File | Folder | Link
Tree = dict[str, "bytes | str | Tree"]  # by name: what a file holds, where a link leads, a folder


class Disk:
    """
    Args:
        root: a folder that is empty, and lasts.
    """

    def __init__(self, root: str) -> None:
        self._root, self.folder = PurePosixPath(root), Folder()

    def apply(self, operation: Operation) -> None:
        path, kind = operation.path, operation.kind
        match kind:
            case Kind.CREATE | Kind.MKDIR | Kind.SYMLINK:
                folder, name = self._place(path)
                made = {Kind.CREATE: File, Kind.MKDIR: Folder}.get(kind)
                folder.change(**{name: made() if made else Link(operation.other)})
            case Kind.WRITE:
                self._file(path).changes.append((operation.offset, operation.data))
            case Kind.TRUNCATE:
                self._file(path).changes.append((operation.offset, None))
            case Kind.RENAME:
                before, name = self._place(path)
                after, new = self._place(operation.other)
                node = before.names[name]
                if before is after:
                    before.change(**{name: None, new: node})
                else:
                    after.change(**{new: node})
                    before.change(**{name: None})
            case Kind.LINK:
                folder, name = self._place(operation.other)
                folder.change(**{name: self._node(path)})
            case Kind.UNLINK | Kind.RMDIR:
                folder, name = self._place(path)
                folder.change(**{name: None})
            case Kind.SYNC:
                _sync(self._node(path))
            case Kind.SYNC_ALL:
                _sync_all(self.folder)
            case Kind.ESCAPE:
                raise AssertionError(f"{path} is written in a way that is not recorded")
            case _ as never:
                assert_never(never)

    def now(self) -> Tree:
        """As processes see it."""
        return _tree(self.folder, lambda folder: folder.changes, lambda file: file.changes)

    def after_a_cut(self, loss: Loss, rng: random.Random) -> Tree:
        """
        Args:
            loss: of what was not synced: all, all data, all names, data but not the size of
                files, what was last of each file and folder, or anything.
        """

        def names(folder: Folder) -> Sequence[dict[str, Node | None]]:
            sure, rest = folder.changes[: folder.synced], folder.changes[folder.synced :]
            if loss in ("all", "names"):
                return sure
            if loss in ("data", "zeros"):
                return [*sure, *rest]
            if loss == "tails":
                return [*sure, *rest[: rng.randint(0, len(rest))]]
            share = rng.choice((0.1, 0.5, 0.9))
            return [*sure, *(change for change in rest if rng.random() < share)]

        def data(file: File) -> Sequence[tuple[int, bytes | None]]:
            sure, rest = file.changes[: file.synced], file.changes[file.synced :]
            if loss in ("all", "data"):
                return sure
            if loss == "names":
                return [*sure, *rest]
            if loss == "zeros":
                return [*sure, *((at, bytes(len(part)) if part else part) for at, part in rest)]
            if loss == "tails":
                left = rest[: rng.randint(0, len(rest))]
                return [*sure, *left[:-1], *(_torn(change, rng) for change in left[-1:])]
            share = rng.choice((0.0, 0.5, 0.9, 1.0))
            return [*sure, *(_torn(change, rng) for change in rest if rng.random() < share)]

        return _tree(self.folder, names, data)

    def _node(self, path: str) -> Node:
        node: Node = self.folder
        for part in PurePosixPath(path).relative_to(self._root).parts:
            assert isinstance(node, Folder), path
            node = node.names[part]
        return node

    def _file(self, path: str) -> File:
        node = self._node(path)
        assert isinstance(node, File), path
        return node

    def _place(self, path: str) -> tuple[Folder, str]:
        folder = self._node(str(PurePosixPath(path).parent))
        assert isinstance(folder, Folder), path
        return folder, PurePosixPath(path).name


def write_tree(tree: Tree, folder: Path) -> None:
    """Have a folder, which is made, hold a tree. Everything is this user's alone."""
    folder.mkdir(mode=0o700)
    for name, what in tree.items():
        match what:
            case bytes():
                (folder / name).write_bytes(what)
                (folder / name).chmod(0o600)
            case str():
                os.symlink(what, folder / name)
            case dict():
                write_tree(what, folder / name)


def _sync(node: Node) -> None:
    if not isinstance(node, Link):
        node.synced = len(node.changes)


def _sync_all(folder: Folder) -> None:
    """Sync a folder and all that was ever in it, which may have another name by now."""
    _sync(folder)
    for change in folder.changes:
        for node in change.values():
            if isinstance(node, Folder):
                _sync_all(node)
            elif node is not None:
                _sync(node)


def _torn(change: tuple[int, bytes | None], rng: random.Random) -> tuple[int, bytes | None]:
    """Sometimes a write is there in part: its beginning, or with sectors that are not."""
    at, part = change
    if not part or rng.random() < 0.5:
        return change
    if rng.random() < 0.5:
        return at, part[: rng.randint(1, len(part))]
    torn = bytearray(part)
    first = rng.randrange(0, len(torn), SECTOR) if len(torn) > SECTOR else 0
    torn[first : first + SECTOR] = bytes(len(torn[first : first + SECTOR]))
    return at, bytes(torn)


def _tree(
    folder: Folder,
    names: Callable[[Folder], Sequence[dict[str, Node | None]]],
    data: Callable[[File], Sequence[tuple[int, bytes | None]]],
) -> Tree:
    files: dict[int, bytes] = {}  # one that has two names is the same under both

    def content(file: File) -> bytes:
        if id(file) not in files:
            files[id(file)] = _content(data(file))
        return files[id(file)]

    def tree(folder: Folder) -> Tree:
        found: dict[str, Node] = {}
        for change in names(folder):
            for name, node in change.items():
                found.pop(name, None)
                if node is not None:
                    found[name] = node
        return {
            name: tree(node)
            if isinstance(node, Folder)
            else content(node)
            if isinstance(node, File)
            else node.target
            for name, node in sorted(found.items())
        }

    return tree(folder)


def _content(changes: Sequence[tuple[int, bytes | None]]) -> bytes:
    content = bytearray()
    for at, part in changes:
        end = at if part is None else at + len(part)
        if len(content) < end:
            content.extend(bytes(end - len(content)))
        if part is None:
            del content[at:]
        else:
            content[at:end] = part
    return bytes(content)
