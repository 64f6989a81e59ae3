"""A version that is handed on while it arrives is the one that was written, each part once."""

import asyncio
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest

from rlboost_jax.messages import FileEntry
from rlboost_jax.models.params import flatten_params
from rlboost_jax.trust.seal import sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights import arrivals, shares
from rlboost_jax.weights.arrivals import ArrivingFiles, FileSource
from rlboost_jax.weights.delta_packs import FOLDER
from rlboost_jax.weights.layer_feed import LayerFeed
from rlboost_jax.weights.leaf_arrays import LeafBuffers
from rlboost_jax.weights.peers.incoming import IncomingPieces
from rlboost_jax.weights.piece_lists import in_order, list_path, listed
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.returnable_arrays import give_back, returnable
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.endpoints import SEAL
from tests.weights.peers.test_shared_pieces import written as in_parts
from tests.weights.test_delta_packs import updated
from tests.weights.test_pull import AT_ONCE, remote, served

LAYERS = 6


@pytest.fixture
def tree():
    rng = np.random.default_rng(1)
    return {
        "embedding": {"table": rng.normal(0, 0.02, (60, 256)).astype(np.float32)},
        "layers": {
            "attention": {"kernel": rng.normal(0, 0.02, (LAYERS, 64, 64)).astype(np.float32)},
            "kernel": rng.normal(0, 0.02, (LAYERS, 64, 64)).astype(np.float32),
            "scale": rng.normal(1, 0.02, (LAYERS, 64)).astype(np.float32),
        },
        "norm": {"scale": np.ones(64, np.float32)},
    }


@pytest.fixture(params=[2**26, 20_000, 3_000])
def store(tmp_path, monkeypatch, request):
    """Pieces of all layers, of two layers, and of parts of a layer."""
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", request.param)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", min(20_000, request.param))
    return SnapshotStore(tmp_path / "snapshots", dtype="bfloat16", keep=1, deltas=(1, 2))


class Taken:
    """A receiver that copies what it is given, and knows nothing of what comes after."""

    def __init__(self, shapes):
        self.shapes, self.lock = shapes, threading.Lock()
        self.parts, self.order = {}, []

    def take(self, name, index, leaf):
        with self.lock:
            assert (name, index) not in self.parts, "twice"
            self.parts[name, index] = np.array(leaf)
            self.order.append((name, index))

    def prepared(self):
        return self


def assert_taken(taken, tree):
    """The parts are those of the tree in bfloat16, by NumPy."""
    wanted = {}
    for name, leaf in flatten_params(tree).items():
        leaf = leaf.astype("bfloat16")
        if name.startswith("layers."):
            wanted |= {(name, index): part for index, part in enumerate(leaf)}
        else:
            wanted[name, None] = leaf
    assert taken.shapes == {name: leaf.shape for name, leaf in flatten_params(tree).items()}
    assert taken.parts.keys() == wanted.keys()
    for unit, part in wanted.items():
        assert taken.parts[unit].tobytes() == part.tobytes(), unit


def written(store, version, tree):
    manifest = store.write(version, tree, f"{version}")
    store.make_packs(manifest)
    return manifest


def pull(puller, manifest):
    return asyncio.run(puller.pull(manifest, Taken)).params


@pytest.mark.parametrize("source", ["directory", "http"])
def test_each_part_comes_once_and_right(store, tree, source):
    manifest = written(store, 0, tree)

    async def over_http():
        async with served(manifest) as (manager, _):
            puller = Puller(source="http", manager=manager, retries=AT_ONCE)
            return (await puller.pull(remote(manifest), Taken)).params

    here = Puller(source="directory", manager=None)
    assert_taken(asyncio.run(over_http()) if source == "http" else pull(here, manifest), tree)


def test_a_receiver_that_wants_none_gets_none(store, tree):
    puller = Puller(source="directory", manager=None)
    pulled = asyncio.run(puller.pull(written(store, 0, tree), lambda shapes: None))
    assert flatten_params(pulled.params).keys() == flatten_params(tree).keys()


def test_the_pieces_of_a_layer_stand_before_those_of_the_next(store, tree):
    """What belongs to none is first. With one reader, no layer waits for pieces of a later one."""
    pieces = listed(written(store, 0, tree))
    leaves = LeafBuffers(pieces)
    begins = [
        leaves.places[e.path]
        for e in pieces.files
        if e.path.startswith("layers.") and e.path in leaves.places
    ]
    first = [where[0].indices(LAYERS)[0] for where in begins]
    assert first == sorted(first)
    kinds = [e.path.startswith("layers.") and e.path in leaves.places for e in pieces.files]
    assert kinds == sorted(kinds)
    assert in_order(tuple(reversed(pieces.files)), pieces.leaves) == pieces.files


def test_memory_is_given_back_and_lasting_leaves_stay(store, tree, monkeypatch):
    made = []

    def noted(shape, dtype):
        made.append(returnable(shape, dtype))
        return made[-1]

    monkeypatch.setattr(LeafBuffers.__init__, "__defaults__", (noted,))
    store.write_base({"base": {"kernel": np.ones((256, 64), np.float32)}})
    puller = Puller(source="directory", manager=None)
    for version in range(2):
        taken = pull(puller, written(store, version, tree))
        assert_taken(taken, {**tree, "base": {"kernel": np.ones((256, 64), np.float32)}})
    base = [array for array in made if array.shape == (256, 64)]
    tables = [array for array in made if array.shape == (60, 256)]
    assert len(base) == 1 and (base[0] == 1).all(), "fetched once, and kept"
    assert len(tables) == 2
    for table in tables:
        assert not table[16:-16].any(), "whole pages read as zeros"


def test_give_back_touches_no_neighbour():
    array = returnable((8, 3000), np.dtype(np.uint8))
    array[:] = 7
    give_back(array[2:6])
    assert (array[:2] == 7).all() and (array[6:] == 7).all()
    inner = array.reshape(-1)[8192:16384]
    assert not inner.any()


def test_a_base_is_written_over_where_nobody_else_has_it(store, tree):
    """The host holds one version where there are differences, in the arrays that it had."""
    puller, first = Puller(source="directory", manager=None, deltas=True), None
    for version in range(4):
        manifest = written(store, version, tree)
        pulled = asyncio.run(puller.pull(manifest, Taken))
        assert_taken(pulled.params, tree)
        if version:
            assert pulled.fetched_bytes * 4 < manifest.num_bytes
        arrays = puller._base.arrays
        first = first or arrays
        for name, array in arrays.items():
            assert np.shares_memory(array, first[name]), name
        tree = updated_here(tree, version)


def updated_here(tree, seed):
    layers = {**updated({"embed": tree["embedding"], "layers": tree["layers"]}, seed)["layers"]}
    return {**tree, "layers": layers}


def test_arrays_that_were_handed_out_are_left_alone(store, tree):
    """A pull that nobody takes gives arrays away; the next one has its own."""
    puller = Puller(source="directory", manager=None, deltas=True)
    asyncio.run(puller.pull(written(store, 0, tree), Taken))
    given = asyncio.run(puller.pull(written(store, 1, updated_here(tree, 0)))).params
    before = {name: np.array(leaf) for name, leaf in flatten_params(given).items()}
    last = updated_here(updated_here(tree, 0), 1)
    assert_taken(pull(puller, written(store, 2, last)), last)
    for name, leaf in flatten_params(given).items():
        assert leaf.tobytes() == before[name].tobytes(), name


@pytest.mark.parametrize("seed", range(12))
def test_a_pull_that_breaks_leaves_a_base_of_which_the_next_is_made(store, tree, seed):
    """Some of its pieces are of the version that did not arrive: none of them is believed."""
    puller, random = Puller(source="directory", manager=None, deltas=True), Random(seed)
    assert_taken(pull(puller, written(store, 0, tree)), tree)
    middle, last = updated_here(tree, 1), updated_here(updated_here(tree, 1), 2)
    broken = written(store, 1, middle)
    for pack in (store.folder / "1" / FOLDER).iterdir():
        pack.unlink()  # so that pieces are fetched into the base
    pieces = [entry for entry in listed(broken).files if entry.path.startswith("layers.kernel/0")]
    path = store.folder / "1" / random.choice(pieces).path
    path.write_bytes(random.choice([b"", bytes(path.stat().st_size)]))
    with pytest.raises(WeightsError):
        pull(puller, broken)
    assert_taken(pull(puller, written(store, 2, last)), last)


def test_after_a_source_that_failed_only_the_rest_is_fetched(store, tree, tmp_path):
    """What was handed on is never written again: a second source brings what the first did not."""
    manifest = written(store, 0, tree)
    copy = tmp_path / "copy"
    pieces = listed(manifest)
    copy.mkdir()
    list_path(copy).write_bytes(list_path(manifest.directory).read_bytes())
    for entry in pieces.files:
        (copy / entry.path).parent.mkdir(exist_ok=True)
        (copy / entry.path).write_bytes((Path(manifest.directory) / entry.path).read_bytes())
    (copy / pieces.files[-1].path).write_bytes(b"")

    async def scenario():
        async with served(manifest) as (manager, seen):
            here = sealed(msgspec.structs.replace(manifest, directory=str(copy)), SEAL)
            return (await Puller(source="auto", manager=manager).pull(here, Taken)).params, seen

    taken, seen = asyncio.run(scenario())
    assert_taken(taken, tree)
    assert any(path == "/weights/0" for path, _ in seen)


def test_of_two_answers_with_a_piece_one_counts(tree, tmp_path):
    """Sources may send the same piece; what was handed on is not touched by the slower answer."""
    arrays = {"layers.kernel": tree["layers"]["kernel"], "table": tree["embedding"]["table"]}
    pieces = in_parts(tmp_path, (2, 2, 1), **arrays)
    leaves = LeafBuffers(pieces)
    taken = Taken({name: array.shape for name, array in arrays.items()})
    feed = LayerFeed(leaves, {}, taken, set())
    incoming = IncomingPieces(pieces.files, leaves)

    async def answer():
        for entry in pieces.files:
            data = (tmp_path / entry.path).read_bytes()
            for begin in range(0, len(data), 1000):
                await asyncio.sleep(0)
                yield data[begin : begin + 1000]

    async def bring():
        return [n async for n, _ in incoming.take(range(len(pieces.files)), answer(), "") if n]

    async def scenario():
        feed.begin()
        await asyncio.gather(bring(), bring())
        await incoming.close()

    asyncio.run(scenario())
    wanted = {("layers.kernel", i): part for i, part in enumerate(arrays["layers.kernel"])}
    wanted["table", None] = arrays["table"]
    assert taken.parts.keys() == wanted.keys()
    assert all(taken.parts[unit].tobytes() == part.tobytes() for unit, part in wanted.items())


def test_a_download_waits_for_who_takes_it():
    """Bytes are not received faster than they are taken: two of the largest files at most."""
    size, count = 2**24, 20
    entries = tuple(FileEntry(path=f"f/{i}", size=size, sha256="0" * 64) for i in range(count))
    source = FileSource(url="", files=entries, wanted={entry.path for entry in entries})
    go, taken = threading.Event(), Counter()

    class Intake:
        def room(self, entry):
            return memoryview(bytearray(entry.size))

        def verified(self, entry):
            taken[entry.path] += 1

    async def scenario():
        with ThreadPoolExecutor(2) as threads, pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrivals, "check", lambda *args: go.wait())
            files = ArrivingFiles(source, Intake(), threads)
            written = 0
            while written < 9 * size:
                files.write(written, memoryview(bytes(size)))
                written += size
            waiting = asyncio.ensure_future(files.caught_up())
            await asyncio.sleep(0)
            assert not waiting.done()
            go.set()
            await waiting
            await files.checked()
        assert len(taken) == 9

    asyncio.run(scenario())
