"""Which process writes which part of a leaf, and that the parts are the whole."""

import hashlib
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from rlboost_jax.messages import PieceList
from rlboost_jax.models.params import params_digest
from rlboost_jax.weights import shares as shares_module
from rlboost_jax.weights.shares import (
    LEAST_CHUNK_BYTES,
    MOST_CHUNK_BYTES,
    Share,
    chunk_shape,
    leaf_entries,
    local_parts,
    shares_of,
    write_shares,
)
from tests.weights.reading import read_params


class Device:
    def __init__(self, process):
        self.process_index = process


class Leaf:
    """An array over devices of several processes; process `here` sees its own parts.

    Args:
        holders: processes that hold each part, by rows of one.
    """

    def __init__(self, here, *holders):
        self.shape, self.nbytes, self.dtype = (len(holders), 3), 12 * len(holders), np.float32
        self._holders, self.sharding = holders, self
        data = SimpleNamespace(copy_to_host_async=lambda: None)
        self.addressable_shards = [
            SimpleNamespace(index=self._index(row), data=data)
            for row, processes in enumerate(holders)
            if here in processes
        ]

    def _index(self, row):
        return (slice(row, row + 1), slice(None))

    def shard_shape(self, shape):
        return (1, 3)

    def devices_indices_map(self, shape):
        return {
            Device(process): self._index(row)
            for row, processes in enumerate(self._holders)
            for process in processes
        }


def owned(count, **leaves):
    """By leaf: the rows that each process writes."""
    found = {name: [] for name in leaves}
    for here in range(count):
        tree = {name: Leaf(here, *holders) for name, holders in leaves.items()}
        shares = shares_of(tree, process=here, read=lambda part: np.zeros((1, 3), np.float32))
        for name, share in shares.items():
            found[name].append(sorted(place[0] for place in share.parts))
    return found


def test_every_part_is_written_once_by_a_process_that_holds_it():
    assert owned(2, split=[{0}, {1}, {0}, {1}]) == {"split": [[0, 2], [1, 3]]}
    assert owned(3, some=[{0, 1}, {1, 2}, {2}]) == {"some": [[0], [1], [2]]}


def test_what_all_hold_is_shared_out():
    """Hosts along `data` all hold everything: process 0 must not write it all."""
    both = {0, 1}
    assert owned(2, a=[both] * 4, b=[both] * 2, c=[both]) == {
        "a": [[0, 2], [1, 3]],
        "b": [[0], [1]],
        "c": [[0], []],
    }
    assert owned(2, a=[both] * 3, b=[both]) == {"a": [[0, 2], [1]], "b": [[], [0]]}


def test_a_process_keeps_each_part_that_it_holds_once():
    def held(here):
        tree = {"a": Leaf(here, {0, 1}, {1}, {0}), "b": Leaf(here, {1})}
        shares = local_parts(tree, read=lambda part: np.zeros((1, 3), np.float32))
        return {name: sorted(place[0] for place in share.parts) for name, share in shares.items()}

    assert held(0) == {"a": [0, 2], "b": []}
    assert held(1) == {"a": [0, 1], "b": [0]}


def halves(array):
    """Two shares of an array that is divided along its last two axes, as far as it has them."""
    part = tuple(size if i < array.ndim - 2 else size // 2 for i, size in enumerate(array.shape))
    grid = [size // each for size, each in zip(array.shape, part, strict=True)]
    shares = []
    for here in range(2):
        parts = {}
        for place in list(np.ndindex(*grid))[here::2]:
            begins = [i * size for i, size in zip(place, part, strict=True)]
            where = tuple(slice(b, b + size) for b, size in zip(begins, part, strict=True))
            parts[place] = array[where]
        shares.append(Share(shape=array.shape, part_shape=part, dtype=array.dtype, parts=parts))
    return shares


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parts_of_two_processes_are_read_back_as_the_whole(tmp_path: Path, dtype):
    rng = np.random.default_rng(0)
    host = {
        "table": rng.normal(size=(6, 8)).astype(np.float32),
        "layers": {"kernel": rng.normal(size=(3, 4, 10)).astype(np.float32)},
        "scale": np.array(rng.normal(), np.float32),
        "count": np.arange(4, dtype=np.int32),
    }
    of_1, of_0 = (jax.tree.map(lambda leaf, here=here: halves(leaf)[here], host) for here in (1, 0))
    files = write_shares(tmp_path, of_1, dtype=dtype, describe=False)  # before there is a shape
    assert all(not entry.path.endswith(".zarray") for entry in files)
    files += write_shares(tmp_path, of_0, dtype=dtype, describe=True)
    assert {entry.path for entry in files} == {
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()
    }
    pieces = PieceList(files=tuple(files), leaves=leaf_entries(of_0, np.dtype(dtype)))
    cast = jax.tree.map(
        lambda leaf: leaf if leaf.dtype == np.int32 else np.asarray(leaf).astype(dtype), host
    )
    assert params_digest(read_params(tmp_path, pieces)) == params_digest(cast)


@pytest.mark.parametrize(
    ("part", "itemsize", "chunk"),
    [
        ((), 4, ()),
        ((36, 2560), 2, (36, 2560)),
        ((36, 4096, 12288), 2, (1, 2048, 12288)),  # half a layer
        ((36, 4096, 1024), 2, (6, 4096, 1024)),
        ((151936, 4096), 2, (4748, 4096)),
        ((50257, 768), 2, (50257, 768)),  # 29 × 1733 rows: cuts of 2.6 MB are too short
        ((151937, 4096), 2, (151937, 4096)),  # a prime: in rows of 8 KiB, or whole
        ((2**28,), 4, (2**24,)),
    ],
)
def test_long_parts_are_cut_along_their_first_axes(part, itemsize, chunk):
    assert chunk_shape(part, itemsize) == chunk
    if chunk != part:
        assert LEAST_CHUNK_BYTES <= int(np.prod(chunk)) * itemsize <= MOST_CHUNK_BYTES


@pytest.mark.parametrize(
    ("part", "chunk"),
    [
        ((36, 2560), (36, 2560)),  # 184 kB in all
        ((36, 4096, 1024), (1, 4096, 1024)),
        ((28, 1024, 1024), (2, 1024, 1024)),
        ((28, 1024, 512), (4, 1024, 512)),
        ((36, 4096, 12288), (1, 2048, 12288)),
        ((61, 512, 512), (61, 512, 512)),  # a prime number of layers
    ],
)
def test_layers_are_cut_to_as_few_as_make_a_piece(part, chunk):
    assert chunk_shape(part, 2, stacked=True) == chunk


@pytest.mark.parametrize("shape", [(6, 8, 5), (12, 7), (9,), ()])
def test_what_is_cut_is_read_back_and_each_cut_has_its_digest(tmp_path, monkeypatch, shape):
    monkeypatch.setattr(shares_module, "MOST_CHUNK_BYTES", 100)
    monkeypatch.setattr(shares_module, "LEAST_CHUNK_BYTES", 1)
    array = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    halves = len(shape) > 0 and shape[0] % 2 == 0
    part = (shape[0] // 2, *shape[1:]) if halves else shape
    parts = np.split(array, 2) if halves else [array]
    files = []
    for i, piece in enumerate(parts):  # each of a process
        place = (i, *(0,) * (len(shape) - 1)) if shape else ()
        share = Share(shape=shape, part_shape=part, dtype=array.dtype, parts={place: piece})
        files += write_shares(tmp_path, {"leaf": share}, dtype="float32", describe=i == 0)
    on_disk = {path.name for path in (tmp_path / "leaf").iterdir()}
    assert {entry.path for entry in files} == {f"leaf/{name}" for name in on_disk}
    sizes = [entry.size for entry in files if not entry.path.endswith(".zarray")]
    assert sum(sizes) == array.nbytes and max(sizes) <= 100
    for entry in files:
        data = (tmp_path / entry.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)
    leaves = leaf_entries({"leaf": array}, np.dtype(np.float32))
    pieces = PieceList(files=tuple(files), leaves=leaves)
    np.testing.assert_array_equal(read_params(tmp_path, pieces)["leaf"], array)
