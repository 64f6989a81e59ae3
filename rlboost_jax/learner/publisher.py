"""Write policy versions to disk beside the training loop, and tidy up after them."""

import queue
import threading
from collections.abc import Callable, Collection
from typing import Any

from rlboost_jax.messages import Manifest
from rlboost_jax.weights.snapshots import SnapshotStore


class SnapshotNotWritten(RuntimeError):
    """A version cannot be published; its step was trained, and the checkpoint is sound."""


class Publisher:
    """One writer thread. A version that cannot be written stops the run at the next call."""

    def __init__(
        self,
        store: SnapshotStore,
        *,
        announce: Callable[[Manifest], None],
        in_use: Callable[[], Collection[int]],
    ):
        """Args:
        announce: called in the writer thread with each version once it is complete on disk.
        in_use: versions that servers hold or fetch now; they are not deleted.
        """
        self._store, self._announce, self._in_use = store, announce, in_use
        self._queue: queue.Queue[tuple[int, Any, str] | None] = queue.Queue(maxsize=1)
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._write_all, name="publisher", daemon=True)
        self._thread.start()

    def submit(self, version: int, host_params: Any, params_digest: str) -> None:
        """Hand a version over; waits only while the one before the last is not on disk."""
        self._raise_error()
        self._queue.put((version, host_params, params_digest))

    def close(self) -> None:
        """Wait for what was handed over."""
        self._queue.put(None)
        self._thread.join()
        self._raise_error()

    def _raise_error(self) -> None:
        if self._error is not None:
            raise SnapshotNotWritten(
                f"a snapshot could not be written: {self._error}"
            ) from self._error

    def _write_all(self) -> None:
        while (item := self._queue.get()) is not None:
            if self._error is not None:
                continue
            version, host_params, params_digest = item
            try:
                manifest = self._store.write(version, host_params, params_digest)
                self._announce(manifest)
                self._store.prune({version, *self._in_use()})
            except Exception as error:  # whatever it is, the training loop must hear of it
                self._error = error
