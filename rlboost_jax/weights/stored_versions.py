"""Versions in an object store, for servers that reach no port of the trainer's but the manager's.

    weights/<SHA-256>    a file of one version or several, put once

A manifest comes by the manager as ever, sealed by the trainer, and a file counts once its digest is
the manifest's. So whoever may write to the store can delay a server, and nothing else.
"""

import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, keep_file

FOLDER: Final = "weights"
_AT_A_TIME: Final = 8  # files
_BLOCK: Final = 2**23


class StoredVersions:
    """The files of a trainer's versions in a store. One writer.

    What fails there costs servers a download from the trainer: it is said once, and tried again
    with the next version.
    """

    def __init__(self, store: ObjectStore, note: Callable[[str], None] = lambda line: None) -> None:
        self._store, self._note = store, note
        self._digests: dict[int, frozenset[str]] = {}  # by version
        self._there: set[str] | None = None  # digests of what the store has; None: not known
        self._failed = False

    def put(self, version: int, place: Path, files: Iterable[FileEntry]) -> None:
        """Put the files of a version that are not there yet; returns when all are."""
        by_digest = {entry.sha256: entry for entry in files}
        self._digests[version] = frozenset(by_digest)
        try:
            missing = by_digest.keys() - self._known()
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="store") as threads:
                for digest in threads.map(
                    lambda digest: self._put(digest, place / by_digest[digest].path), missing
                ):
                    self._known().add(digest)
        except (StoreFailed, OSError) as error:
            if not self._failed:
                self._note(
                    f"version {version} is not whole in weights.store ({error}); servers fetch it "
                    "from the trainer"
                )
            self._failed = True
        else:
            self._failed = False

    def keep(self, versions: Collection[int]) -> None:
        """Delete whatever belongs to none of these versions."""
        self._digests = {v: own for v, own in self._digests.items() if v in versions}
        needed = frozenset().union(*self._digests.values())
        try:
            old = self._known() - needed
            self._store.delete(f"{FOLDER}/{digest}" for digest in old)
            self._known().difference_update(old)
        except StoreFailed:
            self._there = None  # looked for again with the next version

    def _known(self) -> set[str]:
        if self._there is None:
            self._there = {name.rpartition("/")[2] for name in self._store.names(FOLDER)}
        return self._there

    def _put(self, digest: str, path: Path) -> str:
        with open(path, "rb", buffering=0) as file:
            self._store.put(f"{FOLDER}/{digest}", iter(lambda: file.read(_BLOCK), b""))
        return digest


def copy_stored(
    store: ObjectStore,
    entry: FileEntry,
    target: Path,
    counter: ByteCounter,
    abort: threading.Event,
) -> None:
    """Copy a file from a store. Blocks: call it in a thread.

    Args:
        counter: of what comes.
        abort: ends the copy when set.

    Raises:
        WeightsError: missing, unreadable, or not what the manifest says.
    """
    blocks = store.blocks(f"{FOLDER}/{entry.sha256}", entry.size)
    try:
        keep_file(entry, blocks, target, counter, abort, store.url)
    except StoreFailed as error:
        raise WeightsError(f"{entry.path}: {error}") from None
