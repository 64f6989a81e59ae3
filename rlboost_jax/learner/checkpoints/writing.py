"""Checkpoints: a tree of arrays, such as a train state, and JSON values beside it.

A step is written beside its place, forced to the device, renamed into place and read back from
there; only then is it *durable*, and older ones may go. Digests of its files, and of its arrays as
they were in memory, are written with it and checked whenever it is read.

Invariants:
- `save` only copies arrays to the host: all else is done by a thread, in the order of steps;
- what says that it is another checkpoint, or says nothing that can be read, is never deleted;
- no wait is without an end: a save that gets nothing done is abandoned (`DiskThread`), and the
  checkpoint before is the one to resume from.
"""

import json
import shutil
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import jax

from rlboost_jax.learner.checkpoints import folders, leaf_digests, orbax_files
from rlboost_jax.learner.checkpoints.backlog import Backlog
from rlboost_jax.learner.checkpoints.folders import EXTRA, EXTRA_FILE, STATE, VERSIONS, steps_in
from rlboost_jax.learner.checkpoints.orbax_files import own_folders
from rlboost_jax.learner.checkpoints.reading import check, read_back, read_extra, read_tree
from rlboost_jax.learner.processes.bulletin import Bulletin
from rlboost_jax.models.params import Params
from rlboost_jax.platform import at_rest, durable
from rlboost_jax.platform.closing import Closing
from rlboost_jax.platform.disk_thread import STALL_SECONDS, DiskThread
from rlboost_jax.platform.durable import Damaged

Tree = TypeVar("Tree")  # a pytree of arrays
T = TypeVar("T")

WAITING_BYTES: Final = 2**28  # a larger state waits for the disk itself
_OTHERS: Final = "waiting for the other processes of the trainer"


@dataclass(frozen=True, kw_only=True)
class _Save:
    """A checkpoint to be saved."""

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
        keep_every: int = 0,
        on_durable: Callable[[int], None] = lambda step: None,
        before: Callable[[], None] = lambda: None,
        note: Callable[[str], None] = lambda line: None,
        waiting_bytes: int = WAITING_BYTES,
        disk_seconds: float = STALL_SECONDS,
        held: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """Open the folder, and make it where missing.

        Args:
            keep, keep_every: which are left in the folder, see `folders.superseded`.
            on_durable: called with the step, in step order, from a thread of its own.
            before: called there before a step is put in its place, and may wait.
            note: shows a line to people: what is waited for, where that takes long.
            waiting_bytes: of copies that wait for the disk; with more, `save` waits for it.
            disk_seconds: how long a save may get nothing done before it is abandoned.
            held: steps that must not be deleted for now.
        """
        self._folder, self._keep, self._keep_every = Path(folder).absolute(), keep, keep_every
        self._on_durable, self._before, self._held = on_durable, before, held
        self._waiting_bytes = waiting_bytes
        durable.make_folder(self._folder)
        self._owner = folders.owner_of(self._folder)
        self._bulletin = Bulletin(self._folder.name)
        if self._bulletin.index == 0:
            folders.remove_leftovers(self._folder)
        self._writer = DiskThread("checkpoint", stall_seconds=disk_seconds)
        self._backlog = Backlog(self._writer, self._folder, note)
        self._newest = self._durable = self.latest()
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
            DiskStalled: a save got nothing done for too long.
        """
        if self._newest is not None and step <= self._newest:
            self.wait()
            raise ValueError(f"checkpoint {step} would come after {self._newest}; steps only grow")
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        shared = any(map(leaf_digests.is_shared, jax.tree.leaves(state)))
        self._backlog.make_room(self._waiting_bytes - size if not shared else 0)
        older = {VERSIONS: dict(versions)} if versions else {}
        if shared:
            item = self._backlog.done(
                lambda: self._begin_shared_save(step, {STATE: state, **older}, extra),
                f"checkpoint {step}",
                size_bytes=size,
            )
        else:
            trees = {STATE: leaf_digests.tree_on_host(state), **older}
            item = _Save(step=step, trees=trees, extra=extra, leaves=_digests(trees))
        self._newest = step
        self._underway.add(step)
        self._backlog.add(
            lambda: self._save(item), f"checkpoint {step}", step=step, size_bytes=size
        )

    def wait(self, up_to: int | None = None) -> None:
        """Block until all saves are durable and `on_durable` has returned.

        Args:
            up_to: the last step that is waited for; None: all.

        Raises:
            DiskStalled: a save got nothing done for too long.
        """
        self._backlog.wait(up_to)

    def after(self, call: Callable[[], None]) -> None:
        """Have the thread call a function once all saves so far are durable."""
        self._backlog.add(call, "the best checkpoint", step=self._newest or 0, size_bytes=0)

    def has(self, step: int) -> bool:
        """Whether a checkpoint of that step is complete, or being saved."""
        return step in self._underway or self.place(step).is_dir()

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def durable(self) -> int | None:
        """Step of the newest checkpoint that is known to be durable, None if there is none."""
        return self._durable

    def complete(self) -> list[int]:
        """Steps of all complete checkpoints, in order."""
        return steps_in(self._folder)

    def latest(self) -> int | None:
        """Step of the newest complete checkpoint, None if there is none."""
        return max(self.complete(), default=None)

    def place(self, step: int) -> Path:
        return self._folder / str(step)

    def put_aside(self, step: int) -> Path:
        """Rename a broken checkpoint so that it no longer counts; returns its new path."""
        return folders.put_aside(self.place(step))

    def look_again(self) -> None:
        """Read the folder again after checkpoints were put aside, by this or another process."""
        self._newest = self._durable = self.latest()

    def restore(
        self, step: int, abstract: Tree, *, checked: bool = False
    ) -> tuple[Tree, dict[str, Any]]:
        """Read state and extra of a step.

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
        return read_tree(self._folder, step, STATE, abstract), read_extra(self._folder, step)

    def restore_versions(self, step: int, abstract: dict[str, Params]) -> dict[str, Params]:
        """Read the older parameters that belong to a step that was restored.

        Args:
            abstract: shapes, dtypes and shardings to restore onto, by name.

        Raises:
            CheckpointBroken
        """
        versions: dict[str, Params] = read_tree(self._folder, step, VERSIONS, abstract)
        return versions

    def close(self) -> None:
        """Wait for the saves, then release the folder."""
        try:
            self.wait()
        finally:
            self._writer.close()

    def _begin_shared_save(
        self, step: int, trees: Mapping[str, Any], extra: dict[str, Any]
    ) -> _Save:
        """Begin to save arrays of several processes, which are copied now."""
        self._together(
            f"{step}/made", "making its folders", lambda: self._make_folders(step, trees)
        )
        self._writer.sign("copying its arrays")
        leaves, begun = _digests(trees), self._write_arrays(step, trees)
        return _Save(step=step, trees=trees, extra=extra, leaves=leaves, begun=begun)

    def _make_folders(self, step: int, trees: Mapping[str, Any]) -> None:
        part = folders.part_of(self.place(step))
        if self._bulletin.index == 0:
            shutil.rmtree(part, ignore_errors=True)
            for name in trees:
                (part / name).mkdir(parents=True)

    def _write_arrays(self, step: int, trees: Mapping[str, Any]) -> Callable[[], None]:
        part, sign = folders.part_of(self.place(step)), self._writer.sign
        waits = [orbax_files.begin(part / name, tree, sign) for name, tree in trees.items()]

        def wait() -> None:
            for each in waits:
                each()

        return wait

    def _save(self, item: _Save) -> None:
        """Write one save in the thread. After a failure, which is raised soon, skip later ones."""
        if self._failed:
            return
        try:
            self._write(item)
        except BaseException:  # whatever it was, what it left is no checkpoint
            self._failed = True
            raise

    def _write(self, item: _Save) -> None:
        """Write a checkpoint: arrays, JSON values and digests, then put it in its place."""
        part, sign = folders.part_of(self.place(item.step)), self._writer.sign
        if item.begun is None:
            sign("making its folders")
            self._make_folders(item.step, item.trees)
        said = self._together(
            f"{item.step}/written", "taking digests", lambda: self._written(item, part)
        )
        if self._bulletin.index == 0:
            files, leaves = zip(*said, strict=True)
            sign("joining what was written")
            for name in item.trees:
                orbax_files.finish(part / name, sign)
            sign("taking digests of its files")
            (part / EXTRA).mkdir()
            (part / EXTRA / EXTRA_FILE).write_text(json.dumps(item.extra))
            place = {"step": item.step, **({"run": self._owner.run_id} if self._owner else {})}
            leaf_parts = leaf_digests.joined(leaves)
            digests = at_rest.describe(part, ChainMap(*files), leaves=leaf_parts, **place)
            (part / at_rest.FILE).write_bytes(digests)
            sign("forcing its files to the disk")
            durable.sync_tree(part, sign)
        self._finish(item.step)

    def _written(self, item: _Save, part: Path) -> list[dict[str, Any]]:
        """Write this process's arrays; returns digests of files and of leaves.

        Process 0 knows its own files once all is written.
        """
        leaves, sign, index = item.leaves(), self._writer.sign, self._bulletin.index
        sign("writing its arrays")
        (item.begun or self._write_arrays(item.step, item.trees))()
        names: list[str] = []
        for folder in [each for name in item.trees for each in own_folders(part / name, index)]:
            sign("forcing its files to the disk")
            durable.sync_tree(folder, sign)
            below = folder.relative_to(part).as_posix()
            names += [f"{below}/{file}" for file in at_rest.files_below(folder)]
        return [at_rest.digests_of(part, names if index else []), leaves]

    def _finish(self, step: int) -> None:
        """Turn what is on the device into a checkpoint, and delete superseded ones."""
        place, sign = self.place(step), self._writer.sign
        share = (self._bulletin.index, self._bulletin.count)

        def put_in_place() -> None:
            if self._bulletin.index == 0:
                self._before()
                sign("putting it in its place")
                durable.replace(folders.part_of(place), place)

        self._together(f"{step}/placed", "waiting for the rows before it", put_in_place)
        self._together(f"{step}/read", "reading it back", lambda: read_back(place, share))
        self._underway.discard(step)
        self._durable = step
        sign("forcing the events before it to the disk")
        self._on_durable(step)
        sign("deleting older ones")
        if self._bulletin.index == 0:
            for old in folders.superseded(self._folder, step, self._keep, self._keep_every):
                if old not in self._held() and self._is_own(old):
                    folders.remove(self.place(old))

    def _is_own(self, step: int) -> bool:
        """Whether the checkpoint in a place records that it is the one belonging there."""
        try:
            digests = at_rest.described(self.place(step))
        except Damaged:
            return False
        return not folders.why_misplaced(digests or {}, step, self._owner)

    def _together(self, name: str, doing: str, part: Callable[[], T]) -> list[T]:
        """Run `Bulletin.together` with progress signs of what this process does and waits for."""

        def mine() -> T:
            self._writer.sign(doing)
            value = part()
            self._writer.sign(_OTHERS)
            return value

        return self._bulletin.together(name, mine)


def _digests(trees: Mapping[str, Any]) -> Callable[[], dict[str, Any]]:
    parts = {name: leaf_digests.parts_of(tree) for name, tree in trees.items()}
    return lambda: {name: digest() for name, digest in parts.items()}
