"""Write policy versions to disk beside the training loop, and tidy up after them.

A step begins after the one before is over, so nobody needs a version any more once a newer one was
handed over. With `algorithm.lag` open batches are sampled from several: with each that is handed
over comes which is the oldest that is needed.
"""

import threading
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlboost_jax.host.exhaustion import exhausted
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
        self._pending: deque[_Item] = deque()
        self._closing = False
        self._written: Manifest | None = None
        self._error: SnapshotNotWritten | None = None
        self._thread = threading.Thread(target=self._write_all, name="publisher", daemon=True)
        self._thread.start()

    def submit(
        self,
        version: Version,
        host_params: Any,
        params_digest: str,
        *,
        oldest: Version | None = None,
    ) -> None:
        """Hand a version over, in place of older ones that the writer has not come to.

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
            self._pending = deque([*waiting, new])
            self._changed.notify_all()

    def open(self, version: Version) -> Params:
        """The version submitted last, on disk: its arrays, not read yet.

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
            self._pending.clear()
            self._closing = True
            self._changed.notify_all()
        self._thread.join()

    def _next(self) -> "_Item | None":
        """The version to write now; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pending or self._closing)
            return self._pending.popleft() if self._pending else None

    def _write_all(self) -> None:
        while (item := self._next()) is not None:
            version = item.version
            try:
                near = self._spans.near(version)
                with self._spans.span("write snapshot", "publisher", when=near, version=version):
                    manifest = self._store.write(version, item.params, item.params_digest)
                self._announce(manifest)
                with self._changed:
                    self._written = manifest
                    self._changed.notify_all()
                self._store.prune({*range(item.oldest, version + 1), *self._in_use()})
            except Exception as error:  # whatever it is, the training loop must hear of it
                reason = exhausted(error) or str(error)
                failure = SnapshotNotWritten(f"version {version} could not be published: {reason}")
                failure.__cause__ = error
                with self._changed:
                    self._error = failure
                    self._changed.notify_all()
                self._report(str(failure))
                return


def _version(manifest: Manifest | None) -> Version | None:
    return manifest.version if manifest else None


@dataclass(frozen=True, kw_only=True)
class _Item:
    version: Version
    params: Any  # on the host
    params_digest: str
    oldest: Version  # version that is needed
