"""Snapshots: all parameters of one policy version, on disk, complete or not there at all.

A version is written beside its place and renamed into it; the manifest that announces it
exists only after that. A folder has plain Zarr arrays, one folder per leaf, which tensorstore
reads, and Orbax too. Each process of a trainer writes its share (`shares.py`); one of them has the
store, and of the others' shares only the names, sizes and digests of the files.

Nothing here is synced, for no version is needed after a power cut: a trainer that comes back writes
those that its batches are sampled from, and the base, anew from its checkpoint. A reader that finds
one of before in the meantime takes nothing that differs from its sealed manifest, and tries again.

Where only adapters are trained, all else, the *base*, is written once. A version's own files are
then its adapters; its folder and its manifest have the base's files besides.
"""

import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from rlboost_jax.messages import FileEntry, LeafEntry, Manifest, PieceList
from rlboost_jax.models.params import Params
from rlboost_jax.platform import durable
from rlboost_jax.sequences.identities import Version
from rlboost_jax.weights.delta_packs import promise_packs, promised, write_pack
from rlboost_jax.weights.piece_lists import in_order, list_entry, list_path, listed, write_list
from rlboost_jax.weights.shares import leaf_entries, write_shares
from rlboost_jax.weights.stored_versions import StoredVersions

FOLDER: Final = "snapshots"  # of a run, in its workdir
PARTIAL: Final = ".partial"
BASE: Final = "base"  # folder of what all versions share


class SnapshotStore:
    """The snapshots of one run. One writer; readers come and go.

    Args:
        folder: of nothing else; what an earlier run left half-written there is removed.
        dtype: floating-point leaves are stored in it, such as "bfloat16".
        keep: newest versions kept besides those in use; at least 1.
        deltas: a version has packs of its differences from versions so many before it, where these
            are on disk; enough of them are kept.
        stored: where the files of versions also go.
        others: what other processes have written `beside` the place of that name, once they have.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        dtype: str,
        keep: int,
        deltas: Collection[int] = (),
        stored: StoredVersions | None = None,
        others: Callable[[str], Iterable[FileEntry]] = lambda name: (),
    ):
        if keep < 1:
            raise ValueError(f"weights.keep_versions = {keep}; at least 1 version must be kept")
        self._folder = Path(folder).absolute()
        self._dtype = np.dtype(dtype)
        self._keep, self._deltas, self._others = max((keep, *deltas)), deltas, others
        self._stored = stored
        self._base_leaves: tuple[LeafEntry, ...] = ()
        self._base_files: tuple[FileEntry, ...] = ()
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"*{PARTIAL}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        # By time of writing, not by number: a resumed run may write smaller numbers again.
        found = [path for path in self._folder.iterdir() if _version(path) is not None]
        found.sort(key=lambda path: (path.stat().st_mtime_ns, int(path.name)))
        self._written = [int(path.name) for path in found]

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions on disk, oldest first."""
        return tuple(self._written)

    def write(self, version: Version, host_params: Params, params_digest: str) -> Manifest:
        """Write a version and return its manifest. Takes disk time: call it off the hot path.

        A version that is already there is replaced. `make_packs` comes after the announcement.

        Args:
            host_params: nested dict of arrays in host memory, or of `Share` where other processes
                write too; tensors that are tied occur once in it and so on disk.
            params_digest: of the learner's parameters, before the cast to the rollout dtype.
        """
        place = self._folder / str(version)
        leaves, files = self._write_beside(place, host_params)
        for entry in self._base_files:
            own = beside(place) / entry.path
            own.parent.mkdir(parents=True, exist_ok=True)
            durable.link(self._folder / BASE / entry.path, own)
        bases = {version - back for back in self._deltas}
        promise_packs(beside(place), bases.intersection(self._written))
        leaves = (*self._base_leaves, *leaves)
        every = PieceList(files=in_order((*self._base_files, *files), leaves), leaves=leaves)
        manifest = write_list(place, every, version=version, params_digest=params_digest)
        _put_in_place(place)
        self._written = [v for v in self._written if v != version] + [version]
        if self._stored:
            entry = list_entry(manifest)
            its_list = msgspec.structs.replace(entry, path=f"../{entry.path}")
            self._stored.put(version, place, (*every.files, its_list))
        return manifest

    def make_packs(self, manifest: Manifest, stop: Callable[[], bool] = lambda: False) -> None:
        """Make the packs of deltas of a version that was written, the nearest version's first.

        Args:
            stop: called often; once it is true, the packs that are not made yet are abandoned.

        Raises:
            OSError: the disk does not take a pack; it and those after it are abandoned.
        """
        packs = promised(Path(manifest.directory))
        pieces = listed(manifest) if packs else None
        try:
            for pack in packs:
                assert pieces
                write_pack(pack, self._folder / pack.name, pieces, stop)
                if self._stored:
                    self._stored.put_pack(manifest.version, pack)
        except OSError:
            for pack in packs:
                if pack.exists() and not pack.stat().st_size:
                    pack.unlink()
            raise

    def write_base(self, host_params: Params) -> None:
        """Write the parameters that every version from now on has beside its own.

        Their files are in each version's folder under a second name (hard links), and their leaves
        are marked as lasting in each manifest.
        """
        place = self._folder / BASE
        leaves, self._base_files = self._write_beside(place, host_params)
        _put_in_place(place)
        self._base_leaves = tuple(msgspec.structs.replace(leaf, lasting=True) for leaf in leaves)

    def _write_beside(
        self, place: Path, host_params: Params
    ) -> tuple[tuple[LeafEntry, ...], tuple[FileEntry, ...]]:
        partial = beside(place)
        partial.mkdir(exist_ok=True)  # others may have begun
        own = write_shares(partial, host_params, dtype=self._dtype, describe=True)
        files = sorted([*own, *self._others(place.name)], key=lambda entry: entry.path)
        return leaf_entries(host_params, self._dtype), tuple(files)

    def prune(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Delete all but the newest `keep` versions and those in use; returns the deleted."""
        old = [v for v in self._written[: -self._keep] if v not in in_use]
        for version in old:
            shutil.rmtree(self._folder / str(version), ignore_errors=True)
            list_path(self._folder / str(version)).unlink(missing_ok=True)
            self._written.remove(version)
        if self._stored:
            self._stored.keep(self._written)
        return tuple(old)


def beside(place: Path) -> Path:
    """Temporary path next to `place`, where its content is written first."""
    return place.with_name(place.name + PARTIAL)


def _put_in_place(place: Path) -> None:
    """Rename the written folder to its place, moving an existing one aside first.

    On a network file system a folder whose files are still open somewhere cannot be emptied.
    """
    if place.exists():
        old = place.with_name(f"{place.name}{PARTIAL}-old")
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    beside(place).rename(place)


def _version(path: Path) -> int | None:
    return int(path.name) if path.is_dir() and path.name.isdigit() else None
