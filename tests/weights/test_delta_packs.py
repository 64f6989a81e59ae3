"""A server that fetches differences holds the same bits as one that fetches whole versions."""

import asyncio
import struct
from pathlib import Path
from random import Random

import aiohttp
import ml_dtypes
import msgspec
import numpy as np
import pytest
from aiohttp import web
from yarl import URL

from rlboost_jax.models.params import flatten_params
from rlboost_jax.weights import shares
from rlboost_jax.weights.delta_codec import DeltaError
from rlboost_jax.weights.delta_packs import FOLDER, read_pack
from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.weights.test_pull import remote, served

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@pytest.fixture
def tree():
    rng = np.random.default_rng(0)
    return {
        "embed": {"table": rng.normal(0, 0.02, (60, 256)).astype(np.float32)},
        "layers": {
            "kernel": rng.normal(0, 0.02, (4, 64, 64)).astype(np.float32),
            "scale": np.ones((4, 64), np.float32),
        },
        "count": np.asarray(7),
    }


def updated(tree, seed):
    """The tree after an update: most entries of bfloat16 stay, and the scales as they are."""
    rng = np.random.default_rng(seed)

    def moved(leaf):
        return leaf + (rng.normal(0, 2e-6, leaf.shape)).astype(np.float32)

    layers = {**tree["layers"], "kernel": moved(tree["layers"]["kernel"])}
    return {**tree, "embed": {"table": moved(tree["embed"]["table"])}, "layers": layers}


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(tmp_path / "snapshots", dtype="bfloat16", keep=1, deltas=(1, 2, 4))


def assert_holds(pulled, tree):
    found, wanted = flatten_params(pulled.params), flatten_params(tree)
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        expected = leaf.astype(BFLOAT16) if leaf.dtype == np.float32 else leaf
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        assert found[name].tobytes() == expected.tobytes(), name


def pull(puller, manifest):
    return asyncio.run(puller.pull(manifest))


def test_by_deltas_or_whole_it_is_the_same(store, tree):
    follower = Puller(source="directory", manager=None, deltas=True)
    for version in range(6):
        manifest = store.write(version, tree, f"digest {version}")
        by_deltas = pull(follower, manifest)
        whole = pull(Puller(source="directory", manager=None), manifest)
        for pulled in (by_deltas, whole):
            assert_holds(pulled, tree)
        assert whole.fetched_bytes == manifest.num_bytes
        if version:
            assert by_deltas.fetched_bytes * 8 < manifest.num_bytes
        tree = updated(tree, version)


@pytest.mark.parametrize("most", [2**26, 3_000])
@pytest.mark.parametrize("back", [1, 2, 3, 4])
def test_over_http_and_from_versions_further_back(store, tree, back, most, monkeypatch):
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", most)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", 1)
    trees = [tree]
    for seed in range(4):
        trees.append(updated(trees[-1], seed))
    manifests = [store.write(version, trees[version], f"{version}") for version in range(5)]
    first, last = manifests[4 - back], manifests[4]

    async def scenario():
        async with served(first) as (manager, _):
            puller = Puller(source="http", manager=manager, deltas=True)
            await puller.pull(remote(first))
        async with served(last) as (manager, seen):
            puller._manager = manager
            return await puller.pull(remote(last)), seen

    pulled, seen = asyncio.run(scenario())
    assert_holds(pulled, trees[4])
    paths = [path for path, _ in seen]
    assert paths.pop(0) == "/weights/4/list"
    assert paths[0] == f"/weights/4/since/{4 - back}"
    if back == 3:  # of which there are no deltas
        assert "/weights/4" in paths and pulled.fetched_bytes > last.num_bytes / 2
    else:
        assert len(paths) == 1 and pulled.fetched_bytes * 4 < last.num_bytes


def test_the_versions_that_deltas_need_are_kept(store, tree):
    for version in range(8):
        store.write(version, tree, "d")
        store.prune()
    assert store.versions == (4, 5, 6, 7)
    packs = {path.name for path in (store.folder / "7" / FOLDER).iterdir()}
    assert packs == {"3", "5", "6"}


def test_a_trainer_without_deltas_serves_a_server_that_asks(tmp_path, tree):
    store = SnapshotStore(tmp_path, dtype="bfloat16", keep=2)
    puller = Puller(source="directory", manager=None, deltas=True)
    for version in range(2):
        pulled = pull(puller, store.write(version, tree, "d"))
        assert_holds(pulled, tree)
        tree = updated(tree, version)
    assert not (tmp_path / "1" / FOLDER).exists()


def test_leaves_of_other_shapes_or_cut_in_another_way_are_fetched_whole(store, tree, monkeypatch):
    puller = Puller(source="directory", manager=None, deltas=True)
    pull(puller, store.write(0, tree, "d"))
    other = updated(tree, 0)
    other["embed"] = {"table": other["embed"]["table"][:30]}
    other["more"] = np.ones(3, np.float32)
    assert_holds(pull(puller, store.write(1, other, "d")), other)
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", 3_000)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", 1)
    cut = updated(other, 1)
    assert_holds(pull(puller, store.write(2, cut, "d")), cut)


def test_a_base_that_was_written_to_is_found_out(store, tree):
    puller = Puller(source="directory", manager=None, deltas=True)
    held = pull(puller, store.write(0, tree, "d"))
    held.params["layers"]["scale"][0, 0] = 2  # a leaf that does not change
    held.params["embed"]["table"][5, 5] += 1
    new = updated(tree, 0)
    manifest = store.write(1, new, "d")
    pulled = pull(puller, manifest)
    assert_holds(pulled, new)
    assert pulled.fetched_bytes > sum(
        entry.size
        for entry in listed(manifest).files
        if entry.path.startswith(("embed", "layers.scale"))
    )


def test_another_trainer_has_published_the_same_number(store, tree, tmp_path):
    puller = Puller(source="directory", manager=None, deltas=True)
    pull(puller, store.write(0, tree, "first life"))
    again = updated(tree, 7)
    store.write(0, again, "second life")
    new = updated(again, 8)
    assert_holds(pull(puller, store.write(1, new, "second life")), new)


def test_what_a_pull_gave_is_not_touched_by_the_next(store, tree):
    puller = Puller(source="directory", manager=None, deltas=True)
    first = pull(puller, store.write(0, tree, "d"))
    pull(puller, store.write(1, updated(tree, 0), "d"))
    assert_holds(first, tree)


def ending(index, length=None, deltas=b""):
    return deltas + index + struct.pack("<I", len(index) if length is None else length)


HOSTILE = {
    "empty": b"",
    "cut": b"\x05\x00",
    "a huge index": ending(b"\x90", 2**32 - 1),
    "an index of one byte less": ending(b"\x90\x90", 1),
    "no index": ending(b"nope"),
    "no text": ending(b"\x91\x92\xa1\xff\x00"),
    "entries beyond the end": ending(msgspec.msgpack.encode([("embed/0", 2**40)])),
    "bytes that no entry has": ending(b"\x90", deltas=b"more"),
    "negative": ending(msgspec.msgpack.encode([("embed/0", -1)])),
    "lists in lists": ending(b"\x91" * 100_000),
    "a map": ending(b"\x80"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_pack_is_refused(name):
    with pytest.raises(DeltaError):
        read_pack(HOSTILE[name])


@pytest.mark.parametrize("seed", range(40))
def test_whatever_the_pack_the_weights_are_right(store, tree, seed):
    """A pack may be damaged, crossed with another, or endless."""
    random = Random(seed)
    puller = Puller(source="directory", manager=None, deltas=True)
    pull(puller, store.write(0, tree, "d"))
    middle, new = updated(tree, 1), updated(updated(tree, 1), 2)
    store.write(1, middle, "d")
    manifest = store.write(2, new, "d")
    path = Path(manifest.directory) / FOLDER / "0"
    data = bytearray(path.read_bytes())
    match seed % 5:
        case 0:
            data = bytearray((store.folder / "1" / FOLDER / "0").read_bytes())
        case 1:
            data += bytes(2**20)
        case 2:
            del data[random.randrange(len(data)) :]
        case _:
            for _ in range(20):
                data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)
    assert_holds(pull(puller, manifest), new)


@pytest.mark.parametrize("kind", ["broken", "endless"])
def test_a_server_that_breaks_off_or_never_ends_costs_a_whole_version(store, tree, kind):
    first = store.write(0, tree, "d")
    new = updated(tree, 0)
    last = store.write(1, new, "d")

    @web.middleware
    async def hostile(request, handler):
        if "/since/" not in request.path:
            return await handler(request)
        response = web.StreamResponse()
        await response.prepare(request)
        if kind == "endless":
            while True:
                await response.write(bytes(2**16))
        await response.write(b"\xff\xff\xff\x00")
        raise ConnectionError

    async def scenario():
        async with served(first) as (manager, _):
            puller = Puller(source="http", manager=manager, deltas=True)
            await puller.pull(remote(first))
        async with served(last, hostile) as (manager, _):
            puller._manager = manager
            return await puller.pull(remote(last))

    assert_holds(asyncio.run(scenario()), new)


@pytest.mark.parametrize(
    ("place", "status"),
    [
        ("/weights/1/since/0", 200),
        ("/weights/1/since/1", 404),
        ("/weights/0/since/0", 404),
        ("/weights/1/since/-1", 404),
        ("/weights/1/since/..%2fcount%2f0", 404),
        ("/weights/1/.deltas/0", 404),
    ],
)
def test_packs_of_known_versions_are_served_and_nothing_else(store, tree, place, status):
    store.write(0, tree, "d")
    manifest = store.write(1, updated(tree, 0), "d")

    async def scenario():
        async with (
            served(manifest) as (manager, _),
            aiohttp.ClientSession(manager.url(), headers=manager.headers) as session,
            session.get(URL(place, encoded=True)) as response,
        ):
            return response.status, await response.read()

    found, body = asyncio.run(scenario())
    assert found == status
    if status == 200:
        assert body == (store.folder / "1" / FOLDER / "0").read_bytes()
