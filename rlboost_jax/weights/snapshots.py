"""Snapshots: all parameters of one policy version, on disk, complete or not there at all.

A version is written beside its place and renamed into it; the manifest that announces it
exists only after that. The folders are ordinary Orbax checkpoints of plain Zarr arrays
(neither OCDBT nor compression: both cost more time than they save here), one folder per
leaf, which tensorstore reads without Orbax.

Where only adapters are trained, all else, the *base*, is written once. A version's own files are
then its adapters; its folder and its manifest have the base's files besides.
"""

import hashlib
import logging
import shutil
import threading
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import msgspec
import numpy as np
import orbax.checkpoint as ocp

from rlboost_jax.messages import FileEntry, LeafEntry, Manifest
from rlboost_jax.models.params import Params, flatten_params, unflatten_params

PARTIAL = ".partial"
BASE = "base"  # folder of what all versions share

# Orbax names the signals between a save's threads after a counter of the whole process, read as
# they start: two saves that begin at once wait for each other's, for ever. Where the trainer has
# several processes the threads of all of them read it, until the save is over: then it is held
# from its begin to its end.
ORBAX_BEGINS = threading.Lock()


class SnapshotStore:
    """The snapshots of one run. One writer; readers come and go.

    Args:
        folder: of nothing else; what an earlier run left half-written there is removed.
        dtype: floating-point leaves are stored in it, such as "bfloat16".
        keep: newest versions kept besides those in use; at least 1.
    """

    def __init__(self, folder: str | Path, *, dtype: str, keep: int):
        if keep < 1:
            raise ValueError(f"weights.keep_versions = {keep}; at least 1 version must be kept")
        self._folder = Path(folder).absolute()
        self._dtype = np.dtype(dtype)
        self._keep = keep
        self._base_leaves: tuple[LeafEntry, ...] = ()
        self._base_files: tuple[FileEntry, ...] = ()
        self._folder.mkdir(parents=True, exist_ok=True)
        for leftover in self._folder.glob(f"*{PARTIAL}*"):
            shutil.rmtree(leftover)
        # By time of writing, not by number: a resumed run may write smaller numbers again.
        found = [path for path in self._folder.iterdir() if _version(path) is not None]
        found.sort(key=lambda path: path.stat().st_mtime_ns)
        self._written = [int(path.name) for path in found]
        # Where the trainer has several processes, those that do not publish must not be waited for.
        alone = ocp.options.MultiprocessingOptions(
            primary_host=0, active_processes={0}, barrier_sync_key_prefix="snapshots"
        )
        self._checkpointer = ocp.AsyncCheckpointer(
            ocp.PyTreeCheckpointHandler(
                use_ocdbt=False, use_compression=False, multiprocessing_options=alone
            ),
            multiprocessing_options=alone,
        )

    @property
    def versions(self) -> tuple[int, ...]:
        """Versions on disk, oldest first."""
        return tuple(self._written)

    def write(self, version: int, host_params: Params, params_digest: str) -> Manifest:
        """Write a version and return its manifest. Takes disk time: call it off the hot path.

        A version that is already there is replaced.

        Args:
            host_params: nested dict of arrays in host memory; tensors that are tied occur
                once in it and so on disk.
            params_digest: of the learner's parameters, before the cast to the rollout dtype.
        """
        place = self._folder / str(version)
        leaves, files = self._write_beside(place, host_params)
        for entry in self._base_files:
            own = _beside(place) / entry.path
            own.parent.mkdir(parents=True, exist_ok=True)
            own.hardlink_to(self._folder / BASE / entry.path)
        _put_in_place(place)
        self._written = [v for v in self._written if v != version] + [version]
        return Manifest(
            version=version,
            directory=str(place),
            params_digest=params_digest,
            files=(*self._base_files, *files),
            leaves=(*self._base_leaves, *leaves),
        )

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
        partial = _beside(place)
        leaves = {name: self._cast(leaf) for name, leaf in flatten_params(host_params).items()}
        with ORBAX_BEGINS:
            self._checkpointer.save(partial, unflatten_params(leaves), force=True)
            if jax.process_count() > 1:
                self._checkpointer.wait_until_finished()
        self._checkpointer.wait_until_finished()
        names = _leaf_files(partial, leaves)
        with ThreadPoolExecutor(thread_name_prefix="hash") as threads:
            files = tuple(threads.map(lambda name: _file_entry(partial, name), names))
        entries = (
            LeafEntry(name=name, shape=leaf.shape, dtype=leaf.dtype.name)
            for name, leaf in leaves.items()
        )
        return tuple(entries), files

    def prune(self, in_use: Collection[int] = ()) -> tuple[int, ...]:
        """Delete all but the newest `keep` versions and those in use; returns the deleted."""
        old = [v for v in self._written[: -self._keep] if v not in in_use]
        for version in old:
            shutil.rmtree(self._folder / str(version), ignore_errors=True)
            self._written.remove(version)
        return tuple(old)

    def _cast(self, leaf: Any) -> np.ndarray:
        array = np.asarray(leaf)
        floating = array.dtype.kind == "f" or array.dtype.name == "bfloat16"
        return array.astype(self._dtype, copy=False) if floating else array


def _beside(place: Path) -> Path:
    return place.with_name(place.name + PARTIAL)


def _put_in_place(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    _beside(place).rename(place)


def _leaf_files(folder: Path, leaves: Mapping[str, Any]) -> list[str]:
    """Files below the leaves' folders; Orbax's own notes beside them are not for servers."""
    found = (path for name in leaves for path in (folder / name).rglob("*") if path.is_file())
    return sorted(path.relative_to(folder).as_posix() for path in found)


def _file_entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return FileEntry(path=name, size=path.stat().st_size, sha256=digest.hexdigest())


def _version(path: Path) -> int | None:
    return int(path.name) if path.is_dir() and path.name.isdigit() else None


class _WithoutOcdbtWarning(logging.Filter):
    """Orbax warns at every save without OCDBT that there are no OCDBT files to merge."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "Skipping merge of OCDBT" not in str(record.msg)


logging.getLogger("absl").addFilter(_WithoutOcdbtWarning())
