"""Versions in an object store, for servers that reach no port of the trainer's but the manager's.

    weights/<SHA-256>        a file of one version or several, put once
    packs/<version>/<base>   the differences of a version from an older one (`delta_packs.py`);
                             empty while they are being made

A manifest comes by the manager as ever, sealed by the trainer, and a file counts once its digest is
the manifest's. So whoever may write to the store can delay a server, and nothing else. A version
that was put in part when its trainer died is in no manifest: the next start puts what is missing.
"""

import contextlib
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from rlboost_jax.messages import FileEntry
from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.arrivals import ByteCounter, Intake, take_file
from rlboost_jax.weights.delta_packs import promised

FOLDER: Final = "weights"
PACKS: Final = "packs"
_AT_A_TIME: Final = 8  # files
_BLOCK: Final = 2**23


class StoredVersions:
    """The files of a trainer's versions in a store. One writer.

    What fails there costs servers a download from the trainer: it is said once, and tried again
    with the next version.
    """

    def __init__(self, store: ObjectStore, note: Callable[[str], None] = lambda line: None) -> None:
        self._store, self._note = store, note
        self._needed: dict[int, frozenset[str]] = {}  # names by version
        self._there: set[str] | None = None  # names that the store has; None: not known
        self._failed = False

    def put(self, version: int, place: Path, files: Iterable[FileEntry]) -> None:
        """Put what a version has and the store has not; returns when all is there.

        `put_pack` comes later for each pack of deltas that is being made.
        """
        paths = {f"{FOLDER}/{entry.sha256}": place / entry.path for entry in files}
        # A pack of the same name may be of other bits, from before a restart.
        packs = {f"{PACKS}/{version}/{p.name}": p for p in promised(place)}
        self._needed[version] = frozenset({**paths, **packs})
        with self._tried(version):
            missing = {name: p for name, p in paths.items() if name not in self._known()} | packs
            with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="store") as threads:
                for name in threads.map(self._put, missing, missing.values()):
                    self._known().add(name)

    def put_pack(self, version: int, path: Path) -> None:
        """Put a pack that was made, or delete the empty object of one that was abandoned."""
        name = f"{PACKS}/{version}/{path.name}"
        with self._tried(version):
            if path.exists():
                self._put(name, path)
            else:
                self._store.delete([name])

    def keep(self, versions: Collection[int]) -> None:
        """Delete whatever belongs to none of these versions."""
        self._needed = {v: own for v, own in self._needed.items() if v in versions}
        try:
            old = self._known() - frozenset().union(*self._needed.values())
            self._store.delete(old)
            self._known().difference_update(old)
        except StoreFailed:
            self._there = None  # looked for again with the next version

    @contextlib.contextmanager
    def _tried(self, version: int) -> Iterator[None]:
        """Say the first of several failures in a row."""
        try:
            yield
        except (StoreFailed, OSError) as error:
            if not self._failed:
                self._note(
                    f"version {version} is not whole in weights.store ({error}); servers fetch it "
                    "from the trainer"
                )
            self._failed = True
        else:
            self._failed = False

    def _known(self) -> set[str]:
        if self._there is None:
            self._there = {*self._store.names(FOLDER), *self._store.names(PACKS)}
        return self._there

    def _put(self, name: str, path: Path) -> str:
        with open(path, "rb", buffering=0) as file:
            self._store.put(name, iter(lambda: file.read(_BLOCK), b""))
        return name


def stored_pack(store: ObjectStore, version: int, base: int, most: int) -> bytes:
    """Read a pack of deltas from a store. Blocks.

    Raises:
        StoreFailed: there is none, it cannot be read, or has more than `most` bytes.
    """
    return store.read(f"{PACKS}/{version}/{base}", most)


def read_stored(
    store: ObjectStore,
    entry: FileEntry,
    intake: Intake,
    counter: ByteCounter,
    abort: threading.Event,
) -> None:
    """Bring a file from a store. Blocks: call it in a thread.

    Args:
        counter: of what comes.
        abort: ends it when set.

    Raises:
        WeightsError: missing, unreadable, or not what its list says.
    """
    blocks = store.blocks(f"{FOLDER}/{entry.sha256}", entry.size)
    try:
        take_file(entry, blocks, intake, counter, abort, store.url)
    except StoreFailed as error:
        raise WeightsError(f"{entry.path}: {error}") from None
