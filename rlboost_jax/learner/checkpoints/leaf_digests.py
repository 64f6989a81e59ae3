"""Digests of a tree of arrays, leaf by leaf and part by part: what is in memory, not on disk.

A process digests the parts that it alone has to write. A reader of the tree, on whatever
mesh, compares each part that it holds whole; the others are left to the digests of files.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import jax
import numpy as np

Parts = list[list[Any]]  # of a leaf: [[begin, end] for each axis, SHA-256]

_THREADS: Final = 4  # hashing leaves the interpreter to others
_SMALL_BYTES: Final = 2**24  # that one thread digests quickly

T = TypeVar("T")


def is_shared(leaf: Any) -> bool:
    """Whether other processes hold a part of the array."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def on_host(array: Any) -> np.ndarray:
    """Copy to the host that survives donation of the array.

    Host arrays are returned as they are.
    """
    if not isinstance(array, jax.Array):
        return np.asarray(array)
    # NumPy would look at the very memory of what lies on the host.
    kinds = {device.platform for device in array.devices()} | {array.sharding.memory_kind or ""}
    host = any(kind == "cpu" or "host" in kind for kind in kinds)
    return np.array(array) if host else np.asarray(array)


def parts_of(tree: Any) -> Callable[[], dict[str, Parts]]:
    """Copy this process's parts to the host; the returned function computes their digests."""
    held = {
        name: [(index, on_host(part)) for index, part in _own_parts(leaf)]
        for name, leaf in _named(tree).items()
    }

    def digested() -> dict[str, Parts]:
        def digest(name: str) -> tuple[str, Parts]:
            return name, [[index, _digest(part)] for index, part in held[name]]

        parts = (part for parts in held.values() for _, part in parts)
        return {name: found for name, found in _mapped(digest, held, parts) if found}

    return digested


def differing(tree: Any, expected: Mapping[str, Parts]) -> list[str]:
    """Names of the leaves with a part here that differs from what was digested."""
    leaves = _named(tree)

    def differs(name: str) -> bool:
        held = ((part, _part(leaves[name], index)) for index, part in expected[name])
        return any(here is not None and _digest(here) != digest for digest, here in held)

    common = [name for name in expected if name in leaves]
    found = _mapped(differs, common, (leaves[name] for name in common))
    return [name for name, wrong in zip(common, found, strict=True) if wrong]


def _mapped(function: Callable[[str], T], names: Iterable[str], arrays: Iterable[Any]) -> list[T]:
    """Apply a function to each name and array, several at a time where that is faster."""
    if sum(array.nbytes for array in arrays) < _SMALL_BYTES:
        return list(map(function, names))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="digest") as threads:
        return list(threads.map(function, names))


def _named(tree: Any) -> dict[str, Any]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _own_parts(leaf: Any) -> Iterator[tuple[list[list[int]], Any]]:
    """Parts that this process digests, each with its bounds on every axis."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        yield [[0, size] for size in np.shape(leaf)], leaf
        return
    for shard in leaf.addressable_shards:
        if shard.replica_id == 0:
            yield _bounds(shard.index, leaf.shape), shard.data


def _part(leaf: Any, index: list[list[int]]) -> np.ndarray | None:
    """Part of a leaf; None if this process does not hold all of it."""
    if not isinstance(leaf, jax.Array) or leaf.is_fully_addressable:
        return np.asarray(np.asarray(leaf)[_within(index, [[0, 0]] * len(index))])
    for shard in leaf.addressable_shards:
        bounds = _bounds(shard.index, leaf.shape)
        pairs = zip(index, bounds, strict=True)
        if all(begin >= low and end <= high for (begin, end), (low, high) in pairs):
            return np.asarray(np.asarray(shard.data)[_within(index, bounds)])
    return None


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> list[list[int]]:
    return [list(part.indices(size)[:2]) for part, size in zip(index, shape, strict=True)]


def _within(index: list[list[int]], bounds: list[list[int]]) -> tuple[slice, ...]:
    pairs = zip(index, bounds, strict=True)
    return tuple(slice(begin - low, end - low) for (begin, end), (low, _) in pairs)


def _digest(part: np.ndarray) -> str:
    kind = f"{part.dtype} {part.shape}\n".encode()
    data = np.ascontiguousarray(part).reshape(-1).view(np.uint8).data
    digest = hashlib.sha256(kind)
    digest.update(data)
    return digest.hexdigest()


def tree_on_host(tree: Any) -> Any:
    """Copy a tree to host memory; all copies run at the same time."""
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, jax.Array):
            leaf.copy_to_host_async()
    return jax.tree.map(on_host, tree)


def joined(leaves: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Merge the parts that the processes report, leaf by leaf."""
    found: dict[str, dict[str, list[Any]]] = {}
    for said in leaves:
        for name, tree in said.items():
            for leaf, parts in tree.items():
                found.setdefault(name, {}).setdefault(leaf, []).extend(parts)
    return found
