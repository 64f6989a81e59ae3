"""What each process of a trainer writes of the parameters: equal parts of leaves, each part once.

A mesh divides a leaf by a grid, and long parts are cut further. What comes of it are the chunks of
its array on disk, each a file: nobody needs more of a leaf than what it writes, and who fetches it
hashes several at a time.
"""

import hashlib
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jax
import ml_dtypes  # noqa: F401  (NumPy knows "bfloat16" by it)
import numpy as np
import tensorstore as ts
from jax.sharding import Sharding

from rlboost_jax.messages import FileEntry, LeafEntry
from rlboost_jax.models.params import Params, flatten_params, unflatten_params
from rlboost_jax.settings.model_config import STACKED

Place = tuple[int, ...]  # of a part in the grid of its leaf
Read = Callable[[jax.Array], np.ndarray]  # from a device of this process to its memory

MOST_CHUNK_BYTES: Final = 2**26
LEAST_CHUNK_BYTES: Final = 2**22
_WRITERS: Final = 8  # leaves that are cast, written and hashed at the same time


@dataclass(frozen=True, kw_only=True)
class Share:
    """Parts of a leaf: those that one process writes, or all that it holds.

    Attributes:
        shape: of the whole leaf.
        part_shape: of each part.
        parts: of this process.
    """

    shape: tuple[int, ...]
    part_shape: tuple[int, ...]
    dtype: np.dtype
    parts: Mapping[Place, np.ndarray]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts of the share."""
        return sum(part.nbytes for part in self.parts.values())


def shares_of(params: Params, *, process: int, read: Read = np.asarray) -> Params:
    """The tree with a process's share, in its memory, in place of each array.

    All processes find the same owners. The largest leaves come first, and a part is owned by the
    process with the least to write so far among its holders.

    Args:
        params: over a mesh.
        process: this one.
    """
    leaves, burdens = flatten_params(params), dict[int, int]()
    mine: dict[str, dict[Place, jax.Array]] = {}
    for name, leaf in sorted(leaves.items(), key=lambda item: (-item[1].nbytes, item[0])):
        owners, here = _owners(leaf, burdens), _parts_here(leaf)
        mine[name] = {place: here[place] for place, who in owners.items() if who == process}
    return _copied(leaves, mine, read)


def local_parts(params: Params, *, read: Read = np.asarray) -> Params:
    """The tree with all that this process's devices hold, in its memory, in place of each array.

    What several of its devices hold is there once.
    """
    leaves = flatten_params(params)
    here = {name: _parts_here(leaf) for name, leaf in leaves.items()}
    return _copied(leaves, here, read)


def from_local_parts(share: Share, sharding: Sharding) -> jax.Array:
    """The array whose `local_parts` this share is. Every process passes its own share.

    Args:
        sharding: that of the array, in whichever memory of its devices.
    """

    def part(index: tuple[slice, ...] | None) -> np.ndarray:
        return share.parts[_place_of(index or (), share.shape, share.part_shape)]

    return jax.make_array_from_callback(share.shape, sharding, part, dtype=share.dtype)


def write_shares(
    folder: Path, params: Params, *, dtype: str | np.dtype, describe: bool
) -> list[FileEntry]:
    """Write this process's share of a snapshot; returns its files.

    Args:
        params: a tree of `Share`, or of host arrays, which are wholly this process's.
        dtype: of floating-point leaves on disk.
        describe: also each array's shape, which one of the processes has to do.

    Raises:
        OSError: naming the leaf that could not be written.
    """
    # Not synced: what a power cut takes of a version is written anew by the next start. With a
    # queue of its own, so as not to stand behind the syncs of a checkpoint.
    context = ts.Context({"file_io_sync": False, "file_io_concurrency": {"limit": _WRITERS}})
    floats = np.dtype(dtype)

    def write(item: tuple[str, Any]) -> list[FileEntry]:
        name, share = item[0], as_share(item[1])
        try:
            return _write_leaf(folder, name, share, stored(share, floats), describe, context)
        except ValueError as error:  # tensorstore's word for everything
            raise OSError(f"leaf {name}: {str(error).partition(' [')[0]}") from error

    with ThreadPoolExecutor(_WRITERS, thread_name_prefix="write") as threads:
        files = threads.map(write, flatten_params(params).items())
        return [entry for entries in files for entry in entries]


def leaf_entries(params: Params, dtype: np.dtype) -> tuple[LeafEntry, ...]:
    """Manifest entries of all leaves in the order of their names, with their dtype on disk."""
    shares = {name: as_share(leaf) for name, leaf in flatten_params(params).items()}
    return tuple(
        LeafEntry(name=name, shape=share.shape, dtype=stored(share, dtype).name)
        for name, share in shares.items()
    )


def as_share(leaf: Any) -> Share:
    """Return a share as it is; wrap a host array as a share with one part."""
    if isinstance(leaf, Share):
        return leaf
    array = np.asarray(leaf)
    parts = {(0,) * array.ndim: array}
    return Share(shape=array.shape, part_shape=array.shape, dtype=array.dtype, parts=parts)


def stored(share: Share, dtype: np.dtype) -> np.dtype:
    """The dtype of a leaf on disk: only floating-point numbers are cast."""
    return dtype if share.dtype.kind == "f" or share.dtype.name == "bfloat16" else share.dtype


def chunk_shape(
    part_shape: tuple[int, ...], itemsize: int, *, stacked: bool = False
) -> tuple[int, ...]:
    """Shape of the chunks that a part is written in: equal ones of consecutive bytes.

    They have at most `MOST_CHUNK_BYTES`, unless the sizes of the part have no divisors for it.

    Args:
        stacked: the first axis is that of layers: a chunk has as few of them as make
            `LEAST_CHUNK_BYTES`, so that servers can take one layer after the other.
    """
    chunk = list(part_shape)
    if stacked and part_shape:
        layer_bytes = math.prod(part_shape[1:]) * itemsize
        counts = (n for n in range(1, part_shape[0] + 1) if part_shape[0] % n == 0)
        chunk[0] = next((n for n in counts if n * layer_bytes >= LEAST_CHUNK_BYTES), part_shape[0])
    for axis, size in enumerate(chunk):
        row_bytes = math.prod(chunk[axis + 1 :]) * itemsize
        if size * row_bytes <= MOST_CHUNK_BYTES:
            break
        most = max(1, MOST_CHUNK_BYTES // row_bytes)
        rows = next(rows for rows in range(most, 0, -1) if size % rows == 0)
        if rows * row_bytes < LEAST_CHUNK_BYTES:
            break
        chunk[axis] = rows
    return tuple(chunk)


def _parts_here(leaf: jax.Array) -> dict[Place, jax.Array]:
    return {_place(shard.index, leaf): shard.data for shard in leaf.addressable_shards}


def _copied(
    leaves: Mapping[str, jax.Array], parts: Mapping[str, Mapping[Place, jax.Array]], read: Read
) -> Params:
    """A tree of shares that have these parts of each leaf."""
    for part in (part for of_leaf in parts.values() for part in of_leaf.values()):
        part.copy_to_host_async()
    return unflatten_params(
        {
            name: Share(
                shape=leaf.shape,
                part_shape=leaf.sharding.shard_shape(leaf.shape),
                dtype=np.dtype(leaf.dtype),
                parts={place: read(part) for place, part in parts[name].items()},
            )
            for name, leaf in leaves.items()
        }
    )


def _owners(leaf: jax.Array, burdens: dict[int, int]) -> dict[Place, int]:
    """Process that writes each part of a leaf.

    Args:
        burdens: bytes that processes write so far; those of this leaf are added.
    """
    holders: dict[Place, set[int]] = {}
    device: Any
    for device, index in leaf.sharding.devices_indices_map(leaf.shape).items():
        holders.setdefault(_place(index, leaf), set()).add(device.process_index)
    owners = {}
    for place in sorted(holders):
        owner = min(holders[place], key=lambda process: (burdens.get(process, 0), process))
        burdens[owner] = burdens.get(owner, 0) + leaf.nbytes // len(holders)
        owners[place] = owner
    return owners


def _place(index: tuple[slice, ...], leaf: jax.Array) -> Place:
    return _place_of(index, leaf.shape, leaf.sharding.shard_shape(leaf.shape))


def _place_of(index: tuple[slice, ...], shape: Place, part_shape: Place) -> Place:
    parts = zip(index, shape, part_shape, strict=True)
    return tuple(where.indices(size)[0] // part for where, size, part in parts)


def _write_leaf(
    folder: Path, name: str, share: Share, dtype: np.dtype, describe: bool, context: ts.Context
) -> list[FileEntry]:
    """Write a leaf as plain Zarr, uncompressed: compression costs more time than it saves here."""
    stacked = name.startswith(STACKED)
    chunk = chunk_shape(share.part_shape, dtype.itemsize, stacked=stacked)
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{folder / name}/"},
        "dtype": dtype.name,
        "metadata": {"shape": share.shape, "chunks": chunk, "compressor": None},
        "store_data_equal_to_fill_value": True,
    }
    names = [".zarray"] if describe else []
    if describe or share.parts:  # the others need not see the shape on disk
        array = ts.open(
            spec,
            context=context,
            write=True,
            open=True,
            create=describe,
            assume_metadata=not describe,
        ).result()
    for place, part in share.parts.items():
        begins = [i * size for i, size in zip(place, share.part_shape, strict=True)]
        ends = [begin + size for begin, size in zip(begins, share.part_shape, strict=True)]
        where = tuple(slice(*ends_) for ends_ in zip(begins, ends, strict=True))
        array[where].write(part.astype(dtype, copy=False)).result()
        cuts = tuple(size // cut for size, cut in zip(share.part_shape, chunk, strict=True))
        for inner in np.ndindex(cuts):
            chunks = (i * count + j for i, count, j in zip(place, cuts, inner, strict=True))
            names.append(".".join(map(str, chunks)) or "0")
    return [_file_entry(folder, f"{name}/{file}") for file in names]


def _file_entry(folder: Path, name: str) -> FileEntry:
    path = folder / name
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
    return FileEntry(path=name, size=path.stat().st_size, sha256=digest.hexdigest())
