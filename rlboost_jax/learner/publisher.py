"""Write policy versions to disk beside the training loop, and tidy up after them.

A step begins after the one before is over, so nobody needs a version any more once a newer one was
handed over. With `algorithm.lag` open batches are sampled from several: with each that is handed
over comes which is the oldest that is needed.

Invariant: no wait is without an end. A version that gets nothing done is abandoned (`DiskThread`),
as one that cannot be written.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from rlboost_jax.learner.checkpoints.base import Base
from rlboost_jax.learner.processes.leader import Followers
from rlboost_jax.messages import Manifest
from rlboost_jax.models.params import Params
from rlboost_jax.observe.span_recorder import Recorder
from rlboost_jax.platform.disk_thread import STALL_SECONDS, DiskStalled, DiskThread
from rlboost_jax.platform.exhaustion import exhausted
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.leaf_arrays import open_params
from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.snapshots import BASE, SnapshotStore


class SnapshotNotWritten(RuntimeError):
    """A version cannot be published; the last checkpoint is sound."""


class Publisher:
    """One writer thread. A version that cannot be written stops the run at the next `submit`."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        announce: Callable[[Manifest], None],
        in_use: Callable[[], Collection[int]],
        report: Callable[[str], None],
        spans: Recorder | None = None,
        disk_seconds: float = STALL_SECONDS,
    ):
        """Start the writer thread.

        Args:
            announce: called in the writer thread with each version once it is complete on disk. Its
                packs of deltas are made after that, while no other version waits to be written.
            in_use: versions that servers hold or fetch now; they are not deleted.
            report: called in a thread with what went wrong, in words.
            spans: of this process.
            disk_seconds: how long a write may get nothing done before it is abandoned.
        """
        self._store, self._announce, self._in_use = store, announce, in_use
        self._report, self._spans = report, spans or Recorder()
        self._changed = threading.Condition()  # of the five below
        self._closing = False
        self._pending: deque[_Item] = deque()
        self._newest: Version | None = None  # that was submitted
        self._written: Manifest | None = None
        self._error: SnapshotNotWritten | None = None
        self._writer = DiskThread("publisher", stall_seconds=disk_seconds)

    def submit(
        self,
        version: Version,
        host_params: Any,
        params_digest: str,
        *,
        oldest: Version | None = None,
    ) -> None:
        """Hand a version over, replacing older ones that the writer has not begun.

        Args:
            oldest: version that is still needed: it and those after it are written all the same,
                and not deleted. None: only this one is.

        Raises:
            SnapshotNotWritten: an earlier version.
        """
        oldest = version if oldest is None else oldest
        with self._changed:
            if self._error is not None:
                raise self._error
            waiting = [item for item in self._pending if item.version >= oldest]
            new = _Item(
                version=version, params=host_params, params_digest=params_digest, oldest=oldest
            )
            self._pending, self._newest = deque([*waiting, new]), version
        self._writer.submit(
            self._write_next, f"version {version}", self._store.folder, size_bytes=_bytes(new)
        ).add_done_callback(self._ended)

    def open(self, version: Version) -> Params:
        """Open the arrays of the version submitted last, on disk and not read yet.

        Raises:
            SnapshotNotWritten
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or _version(self._written) == version)
            if self._error is not None:
                raise self._error
            assert self._written is not None
            return open_params(Path(self._written.directory), listed(self._written))

    @property
    def unwritten(self) -> Version | None:
        """The version submitted last, until it is complete on disk; callable in any thread."""
        return None if self._newest == _version(self._written) else self._newest

    def close(self) -> None:
        """Wait for the version being written; those not begun are not needed any more."""
        with self._changed:
            self._pending.clear()
            self._closing = True
        self._writer.close()

    def _write_next(self) -> None:
        """Write the oldest version that waits, unless a newer one has replaced it."""
        with self._changed:
            if not self._pending or self._error is not None:
                return
            item = self._pending.popleft()
        version = item.version
        self._writer.sign(f"writing version {version}")
        try:
            near = self._spans.near(version)
            with self._spans.span("write snapshot", "publisher", when=near, version=version):
                manifest = self._store.write(version, item.params, item.params_digest)
            self._writer.sign("announcing it")
            self._announce(manifest)
            with self._changed:
                self._written = manifest
                self._changed.notify_all()
            self._writer.sign("making its deltas")
            try:
                self._store.make_packs(manifest, self._has_other_work)
            except OSError as error:
                self._report(f"version {version} has no differences, servers fetch it: {error}")
            self._writer.sign("deleting older versions")
            self._store.prune({*range(item.oldest, version + 1), *self._in_use()})
        except Exception as error:  # whatever it is, the training loop must hear of it
            reason = exhausted(error) or str(error)
            failure = SnapshotNotWritten(f"version {version} could not be published: {reason}")
            failure.__cause__ = error
            self._fail(failure)

    def _has_other_work(self) -> bool:
        """Whether a version waits to be written, or the run ends."""
        self._writer.sign()
        return bool(self._pending) or self._closing

    def _ended(self, end: "Future[None]") -> None:
        if isinstance(error := end.exception(), DiskStalled):
            failure = SnapshotNotWritten(f"no version can be published: {error}")
            self._fail(failure)

    def _fail(self, failure: SnapshotNotWritten) -> None:
        """Record a failure; the first is raised when the next version is submitted or awaited."""
        with self._changed:
            if self._error is not None:
                return
            self._error = failure
            self._changed.notify_all()
        self._report(str(failure))


def published_base(
    params: Params, followers: Followers, store: SnapshotStore, disk_seconds: float
) -> Base:
    """Write the base for servers, once for all versions of this start. Raises DiskStalled."""
    followers.write(BASE)
    host_params = followers.host_copy(params)
    with DiskThread("base", stall_seconds=disk_seconds) as disk:
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(host_params))
        disk.submit(
            lambda: store.write_base(host_params), "the base", store.folder, size_bytes=size
        ).result()
    return Base(params=params, digest=followers.digest(params, host_params, BASE))


def _version(manifest: Manifest | None) -> Version | None:
    return manifest.version if manifest else None


@dataclass(frozen=True, kw_only=True)
class _Item:
    version: Version
    params: Any  # on the host
    params_digest: str
    oldest: Version  # version that is needed


def _bytes(item: _Item) -> int:
    return sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(item.params))
