"""Checkpoints: a tree of arrays, such as a train state, and JSON values beside it.

A step is written beside its place, forced to the device, renamed into place and read back from
there; only then is it *durable*, and older ones may go. Digests of its files, and of its arrays as
they were in memory, are written with it and checked whenever it is read.

Invariants:
- `save` only copies arrays to the host: all else is done by a thread, in the order of steps;
- none is deleted before a newer one was read back;
- what says that it is another checkpoint, or says nothing that can be read, is never deleted.
"""

import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import jax

from rlboost_jax.closing import Closing
from rlboost_jax.learner.checkpoints import folders, leaf_digests, orbax_files
from rlboost_jax.learner.checkpoints.folders import EXTRA, EXTRA_FILE, STATE, VERSIONS, steps_in
from rlboost_jax.learner.checkpoints.orbax_files import own_folders
from rlboost_jax.learner.checkpoints.reading import check, read_extra, read_tree
from rlboost_jax.learner.processes.bulletin import Bulletin
from rlboost_jax.models.params import Params
from rlboost_jax.storage import at_rest, durable
from rlboost_jax.storage.durable import Damaged

Tree = TypeVar("Tree")  # a pytree of arrays

WAITING_BYTES: Final = 2**28  # a larger state waits for the disk itself


class CheckpointNotWritten(RuntimeError):
    """What is on the disk is not what was to be written; the checkpoint before is sound."""


@dataclass(frozen=True, kw_only=True)
class _Save:
    """What is to be saved."""

    step: int
    trees: Mapping[str, Any]  # by folder
    extra: dict[str, Any]
    leaves: Callable[[], dict[str, Any]]  # digests of the arrays
    begun: Callable[[], None] | None = None  # waits for arrays that are on their way to the disk


class Checkpoints(Closing):
    """Checkpoints of one run in one folder. One thread saves; it is also the one that closes.

    Every save is heard of once: `on_durable` is called after it was read back, or the next `save`,
    `wait` or `close` raises what went wrong.
    """

    def __init__(
        self,
        folder: Path,
        *,
        keep: int,
        on_durable: Callable[[int], None] = lambda step: None,
        before: Callable[[], None] = lambda: None,
        waiting_bytes: int = WAITING_BYTES,
    ) -> None:
        """Open the folder, and make it where missing.

        Args:
            keep: newest checkpoints left in the folder, the others are deleted.
            on_durable: called with the step, in step order, from a thread of its own.
            before: called there before a step is put in its place, and may wait.
            waiting_bytes: of copies that wait for the disk; with more, `save` waits for it.
        """
        self._folder, self._keep, self._on_durable = Path(folder).absolute(), keep, on_durable
        self._before, self._waiting_bytes = before, waiting_bytes
        durable.make_folder(self._folder)
        self._owner = folders.owner_of(self._folder)
        self._bulletin = Bulletin(self._folder.name)
        if self._bulletin.index == 0:
            folders.remove_leftovers(self._folder)
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._saving: deque[tuple[int, Future[None]]] = deque()  # bytes of each
        self._newest = self.latest()
        self._underway: set[int] = set()  # steps
        self._failed = False  # what was to be saved after that is not

    def save(
        self,
        step: int,
        state: Any,
        extra: dict[str, Any],
        versions: Mapping[str, Params] | None = None,
    ) -> None:
        """Begin to save; returns once the arrays are copied to the host, and may be donated.

        Saves that are still under way are waited for where their copies take too much memory.

        Args:
            step: greater than those saved before.
            state: a tree of arrays; what is in host memory already is not copied.
            extra: plain JSON values.
            versions: older parameters that go with it, by name, in host memory.

        Raises:
            ValueError: the step is not greater than the newest.
        """
        if self._newest is not None and step <= self._newest:
            self.wait()
            raise ValueError(f"checkpoint {step} would come after {self._newest}; steps only grow")
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        shared = any(map(_is_shared, jax.tree.leaves(state)))
        self._make_room(self._waiting_bytes - size if not shared else 0)
        older = {VERSIONS: dict(versions)} if versions else {}
        if shared:
            item = self._begun(step, {STATE: state, **older}, extra)
        else:
            trees = {STATE: _on_host(state), **older}
            item = _Save(step=step, trees=trees, extra=extra, leaves=_digests(trees))
        self._newest = step
        self._underway.add(step)
        self._saving.append((size, self._writer.submit(self._save, item)))

    def wait(self) -> None:
        """Block until what was saved is durable and `on_durable` has returned."""
        while self._saving:
            self._saving.popleft()[1].result()

    def after(self, call: Callable[[], None]) -> None:
        """Have something done by the thread, once what was saved is durable."""
        self._saving.append((0, self._writer.submit(call)))

    def has(self, step: int) -> bool:
        """Whether a checkpoint of that step is complete, or on its way."""
        return step in self._underway or self.place(step).is_dir()

    @property
    def folder(self) -> Path:
        return self._folder

    def complete(self) -> list[int]:
        """Steps of all complete checkpoints, in order."""
        return steps_in(self._folder)

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, None if there is none."""
        return max(self.complete(), default=None)

    def place(self, step: int) -> Path:
        return self._folder / str(step)

    def put_aside(self, step: int) -> Path:
        """Count a broken checkpoint no more; returns where it lies now."""
        return folders.put_aside(self.place(step))

    def look_again(self) -> None:
        """After some were put aside, by this process or another: steps grow from what is left."""
        self._newest = self.latest()

    def restore(
        self, step: int, abstract: Tree, *, checked: bool = False
    ) -> tuple[Tree, dict[str, Any]]:
        """State and extra of a step.

        Args:
            abstract: shapes, dtypes and shardings to restore onto, such as
                `state.abstract_state`; the mesh may be another than the one that saved.
            checked: the files' digests have been compared just now.

        Raises:
            CheckpointNotFound: no complete checkpoint of the step is in the folder.
            CheckpointBroken: its files are damaged, or of another model.
        """
        if not checked:
            check(self._folder, step)
        state = read_tree(self._folder, step, STATE, abstract)
        return state, read_extra(self._folder, step)

    def restore_versions(self, step: int, abstract: dict[str, Params]) -> dict[str, Params]:
        """The older parameters that go with a step that was restored.

        Args:
            abstract: shapes, dtypes and shardings to restore onto, by name.

        Raises:
            CheckpointBroken
        """
        versions: dict[str, Params] = read_tree(self._folder, step, VERSIONS, abstract)
        return versions

    def close(self) -> None:
        """Wait for what was saved, then let go of the folder."""
        try:
            self.wait()
        finally:
            self._writer.shutdown()

    def _make_room(self, left_bytes: int) -> None:
        """Wait for the oldest saves until the others leave room, and raise what went wrong."""
        while self._saving and (
            self._saving[0][1].done() or sum(size for size, _ in self._saving) > left_bytes
        ):
            self._saving.popleft()[1].result()

    def _begun(self, step: int, trees: Mapping[str, Any], extra: dict[str, Any]) -> _Save:
        """What is to be saved of arrays of several processes; these are copied now."""
        self._bulletin.together(f"{step}/made", lambda: self._make_folders(step, trees))
        digests = _digests(trees)
        begun = self._write_arrays(step, trees)
        return _Save(step=step, trees=trees, extra=extra, leaves=digests, begun=begun)

    def _make_folders(self, step: int, trees: Mapping[str, Any]) -> None:
        part = folders.part_of(self.place(step))
        if self._bulletin.index == 0:
            shutil.rmtree(part, ignore_errors=True)
            for name in trees:
                (part / name).mkdir(parents=True)

    def _write_arrays(self, step: int, trees: Mapping[str, Any]) -> Callable[[], None]:
        part = folders.part_of(self.place(step))
        waits = [orbax_files.begin(part / name, tree) for name, tree in trees.items()]

        def wait() -> None:
            for each in waits:
                each()

        return wait

    def _save(self, item: _Save) -> None:
        """In the thread. A failure is raised soon. What comes after it is left alone: with it the
        last sound one would become old."""
        if self._failed:
            return
        try:
            self._write(item)
        except BaseException:  # whatever it was, what it left is no checkpoint
            self._failed = True
            raise

    def _write(self, item: _Save) -> None:
        """From the first byte to the last."""
        part, together = folders.part_of(self.place(item.step)), self._bulletin.together
        if item.begun is None:
            self._make_folders(item.step, item.trees)
        said = together(f"{item.step}/written", lambda: self._written(item, part))
        if self._bulletin.index == 0:
            files, leaves = zip(*said, strict=True)
            for name in item.trees:
                orbax_files.finish(part / name)
            (part / EXTRA).mkdir()
            (part / EXTRA / EXTRA_FILE).write_text(json.dumps(item.extra))
            place = {"step": item.step, **({"run": self._owner.run_id} if self._owner else {})}
            leaf_parts = _joined_parts(leaves)
            digests = at_rest.describe(part, _joined(files), leaves=leaf_parts, **place)
            (part / at_rest.FILE).write_bytes(digests)
            durable.sync_tree(part)
        self._finish(item.step)

    def _written(self, item: _Save, part: Path) -> list[dict[str, Any]]:
        """Write this process's arrays; returns digests of files and of leaves.

        Process 0 knows its own files once all is written.
        """
        leaves = item.leaves()
        (item.begun or self._write_arrays(item.step, item.trees))()
        index = self._bulletin.index
        names: list[str] = []
        for folder in [each for name in item.trees for each in own_folders(part / name, index)]:
            durable.sync_tree(folder)
            below = folder.relative_to(part).as_posix()
            names += [f"{below}/{file}" for file in at_rest.files_below(folder)]
        return [at_rest.digests_of(part, names if index else []), leaves]

    def _finish(self, step: int) -> None:
        """What is on the device becomes a checkpoint, and older ones go."""
        place, together = self.place(step), self._bulletin.together

        def put_in_place() -> None:
            if self._bulletin.index == 0:
                self._before()
                durable.replace(folders.part_of(place), place)

        together(f"{step}/placed", put_in_place)
        together(f"{step}/read", lambda: self._read_back(step))
        self._underway.discard(step)
        self._on_durable(step)
        if self._bulletin.index == 0:
            known = [each for each in self.complete() if each <= step]
            for old in known[: -self._keep]:
                if self._is_own(old):
                    folders.remove(self.place(old))

    def _is_own(self, step: int) -> bool:
        """Whether what lies in the place of a checkpoint is that checkpoint, by its own word."""
        try:
            digests = at_rest.described(self.place(step))
        except Damaged:
            return False
        return not folders.misplaced(digests or {}, step, self._owner)

    def _read_back(self, step: int) -> None:
        """From the device, where that can be had; each process its share.

        Raises:
            CheckpointNotWritten
        """
        place, share = self.place(step), (self._bulletin.index, self._bulletin.count)
        digests = at_rest.described(place)
        assert digests is not None
        if found := list(at_rest.faults(place, digests["files"], share=share, from_disk=True)):
            raise CheckpointNotWritten(
                f"checkpoint {step} was written and does not read back: {at_rest.one_line(found)}; "
                "look at the disk, the same command goes on from the checkpoint before"
            )


def _is_shared(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def _on_host(tree: Any) -> Any:
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    return jax.tree.map(leaf_digests.on_host, tree)


def _digests(trees: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    parts = {name: leaf_digests.parts_of(tree) for name, tree in trees.items()}
    return lambda: {name: digest() for name, digest in parts.items()}


def _joined(files: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: each for said in files for name, each in said.items()}


def _joined_parts(leaves: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Parts of each leaf of each tree, by whichever process."""
    joined: dict[str, dict[str, list[Any]]] = {}
    for said in leaves:
        for name, tree in said.items():
            for leaf, parts in tree.items():
                joined.setdefault(name, {}).setdefault(leaf, []).extend(parts)
    return joined
