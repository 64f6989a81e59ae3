"""Lists of pieces: what versions are made of, in files of their own, which manifests name.

A list lies beside its version's folder, in which Orbax takes everything for an array. It comes from
the network: it counts once its digest is that of a sealed manifest.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

import msgspec

from rlboost_jax.messages import MAX_LIST_BYTES, FileEntry, LeafEntry, Manifest, PieceList
from rlboost_jax.platform.bounded_files import Unreadable, read_bytes
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.model_config import STACKED
from rlboost_jax.trust.snapshot_names import WeightsError, check_names

SUFFIX: Final = ".pieces"  # of a version's folder: its list

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(PieceList).decode


def list_path(directory: Path | str) -> Path:
    """Path of the list of a version in a folder."""
    return Path(f"{directory}{SUFFIX}")


def write_list(
    directory: Path, pieces: PieceList, *, version: Version, params_digest: str
) -> Manifest:
    """Write a version's list, and return the manifest that names it.

    Args:
        directory: of the version, there or not.

    Raises:
        OSError: the disk does not take it, or the list is longer than a server accepts.
    """
    data = _encode(pieces)
    if len(data) > MAX_LIST_BYTES:
        raise OSError(
            f"a list of {len(pieces.files)} pieces takes {len(data):,} bytes; the most is "
            f"{MAX_LIST_BYTES:,} (messages.MAX_LIST_BYTES)"
        )
    list_path(directory).write_bytes(data)
    return Manifest(
        version=version,
        directory=str(directory),
        params_digest=params_digest,
        piece_bytes=pieces.num_bytes,
        list_bytes=len(data),
        list_sha256=hashlib.sha256(data).hexdigest(),
    )


def in_order(files: Collection[FileEntry], leaves: Iterable[LeafEntry]) -> tuple[FileEntry, ...]:
    """Order pieces as they should arrive: layer by layer, after what belongs to no layer or to all.

    Servers fetch them in this order, and put each layer on the device once it is there.
    """
    lengths = {leaf.name: leaf.shape[:1] for leaf in leaves if leaf.name.startswith(STACKED)}
    rows, counts = dict[str, tuple[str, int]](), Counter[str]()
    for entry in files:
        name, _, chunk = entry.path.rpartition("/")
        first = chunk.partition(".")[0]
        if name in lengths and first.isdigit():
            rows[entry.path] = name, int(first)
            counts[name] = max(counts[name], int(first) + 1)

    def layer(entry: FileEntry) -> float:
        if entry.path not in rows:
            return -1.0
        name, row = rows[entry.path]
        return row * lengths[name][0] / counts[name]

    return tuple(sorted(files, key=lambda entry: (layer(entry), entry.path)))


def list_entry(manifest: Manifest) -> FileEntry:
    """The entry of the list that a manifest names, in the parent of the version's folder."""
    path = list_path(manifest.directory).name
    return FileEntry(path=path, size=manifest.list_bytes, sha256=manifest.list_sha256)


def decoded_list(data: bytes | memoryview) -> PieceList:
    """Decode a list. Raises WeightsError if it is none, or names what it must not."""
    try:
        pieces = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsError(f"list of pieces: {error}") from None
    check_names(pieces)
    if any(entry.size < 0 for entry in pieces.files):
        raise WeightsError("list of pieces: a file has less than no bytes")
    return pieces


def read_list(directory: Path, size: int, sha256: str) -> PieceList:
    """Read and check the list of a version on this disk. Raises WeightsError."""
    try:
        data = read_bytes(list_path(directory), size, "a list of pieces")
    except (OSError, Unreadable) as error:
        raise WeightsError(f"list of pieces: {error}") from None
    if len(data) != size or hashlib.sha256(data).hexdigest() != sha256:
        raise WeightsError(f"{list_path(directory)} is not the list that its manifest names")
    return decoded_list(data)


def listed(manifest: Manifest) -> PieceList:
    """Read the list of a manifest from its folder, which is on this disk. Raises WeightsError."""
    return read_list(Path(manifest.directory), manifest.list_bytes, manifest.list_sha256)
