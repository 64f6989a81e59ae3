"""Write policy versions to disk beside the training loop, and tidy up after them.

Only the newest version counts: a step begins after the one before is over, so nobody needs
a version any more once a newer one was handed over.
"""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from rlboost_jax.messages import Manifest
from rlboost_jax.models.params import Params
from rlboost_jax.observe.spans import Recorder
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.pull import open_params
from rlboost_jax.weights.snapshots import SnapshotStore


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
    ):
        """Start the writer thread.

        Args:
            announce: called in the writer thread with each version once it is complete on disk.
            in_use: versions that servers hold or fetch now; they are not deleted.
            report: called in the writer thread with what went wrong, in words.
            spans: of this process.
        """
        self._store, self._announce, self._in_use = store, announce, in_use
        self._report, self._spans = report, spans or Recorder()
        self._changed = threading.Condition()  # of the four below
        self._pending: tuple[Version, Any, str] | None = None
        self._closing = False
        self._written: Manifest | None = None
        self._error: SnapshotNotWritten | None = None
        self._thread = threading.Thread(target=self._write_all, name="publisher", daemon=True)
        self._thread.start()

    def submit(self, version: Version, host_params: Any, params_digest: str) -> None:
        """Hand a version over, in place of one that the writer has not come to.

        Raises:
            SnapshotNotWritten: an earlier version.
        """
        with self._changed:
            if self._error is not None:
                raise self._error
            self._pending = version, host_params, params_digest
            self._changed.notify_all()

    def open(self, version: Version) -> Params:
        """The version submitted last, on disk: its arrays, of which nothing is read yet.

        Raises:
            SnapshotNotWritten
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error or _version(self._written) == version)
            if self._error is not None:
                raise self._error
            assert self._written is not None
            return open_params(Path(self._written.directory), self._written)

    def close(self) -> None:
        """Wait for what is being written; what nobody has come to is not needed any more."""
        with self._changed:
            self._pending, self._closing = None, True
            self._changed.notify_all()
        self._thread.join()

    def _next(self) -> tuple[Version, Any, str] | None:
        """The version to write now; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending is not None or self._closing)
            item, self._pending = self._pending, None
            return item

    def _write_all(self) -> None:
        while (item := self._next()) is not None:
            version, host_params, params_digest = item
            try:
                near = self._spans.near(version)
                with self._spans.span("write snapshot", "publisher", when=near, version=version):
                    manifest = self._store.write(version, host_params, params_digest)
                self._announce(manifest)
                with self._changed:
                    self._written = manifest
                    self._changed.notify_all()
                self._store.prune({version, *self._in_use()})
            except Exception as error:  # whatever it is, the training loop must hear of it
                failure = SnapshotNotWritten(f"version {version} could not be published: {error}")
                failure.__cause__ = error
                with self._changed:
                    self._error = failure
                    self._changed.notify_all()
                self._report(str(failure))
                return


def _version(manifest: Manifest | None) -> Version | None:
    return manifest.version if manifest else None
