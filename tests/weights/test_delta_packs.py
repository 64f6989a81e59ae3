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
from rlboost_jax.weights import delta_packs, pack_fetch, shares
from rlboost_jax.weights.delta_codec import DeltaError
from rlboost_jax.weights.delta_packs import FOLDER, promised, read_pack
from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.patience import PATIENCE_SECONDS
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
    return SnapshotStore(tmp_path / "snapshots", dtype="bfloat16", keep=1, deltas=(1, 2, 4, 8))


def assert_holds(pulled, tree):
    found, wanted = flatten_params(pulled.params), flatten_params(tree)
    assert found.keys() == wanted.keys()
    for name, leaf in wanted.items():
        expected = leaf.astype(BFLOAT16) if leaf.dtype == np.float32 else leaf
        assert (found[name].dtype, found[name].shape) == (expected.dtype, expected.shape)
        assert found[name].tobytes() == expected.tobytes(), name


def written(store, version, tree, digest):
    """The manifest of a version that was written, with its packs."""
    manifest = store.write(version, tree, digest)
    store.make_packs(manifest)
    return manifest


def pull(puller, manifest):
    return asyncio.run(puller.pull(manifest))


def test_by_deltas_or_whole_it_is_the_same(store, tree):
    follower = Puller(source="directory", manager=None, deltas=True)
    for version in range(6):
        manifest = written(store, version, tree, f"digest {version}")
        by_deltas = pull(follower, manifest)
        whole = pull(Puller(source="directory", manager=None), manifest)
        for pulled in (by_deltas, whole):
            assert_holds(pulled, tree)
        assert whole.fetched_bytes == manifest.num_bytes
        if version:
            assert by_deltas.fetched_bytes * 8 < manifest.num_bytes
        tree = updated(tree, version)


@pytest.mark.parametrize("most", [2**26, 3_000])
@pytest.mark.parametrize("back", [1, 2, 3, 4, 8])
def test_over_http_and_from_versions_further_back(store, tree, back, most, monkeypatch):
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", most)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", 1)
    trees = [tree]
    for seed in range(8):
        trees.append(updated(trees[-1], seed))
    manifests = [written(store, version, trees[version], f"{version}") for version in range(9)]
    first, last = manifests[8 - back], manifests[8]

    async def scenario():
        async with served(first) as (manager, _):
            puller = Puller(source="http", manager=manager, deltas=True)
            await puller.pull(remote(first))
        async with served(last) as (manager, seen):
            puller._manager = manager
            return await puller.pull(remote(last)), seen

    pulled, seen = asyncio.run(scenario())
    assert_holds(pulled, trees[8])
    paths = [path for path, _ in seen]
    assert paths.pop(0) == "/weights/8/list"
    assert paths[0] == f"/weights/8/since/{8 - back}"
    if back == 3:  # of which there are no deltas
        assert "/weights/8" in paths and pulled.fetched_bytes > last.num_bytes / 2
    else:
        assert len(paths) == 1 and pulled.fetched_bytes * 4 < last.num_bytes


def test_the_versions_that_deltas_need_are_kept(store, tree):
    for version in range(12):
        written(store, version, tree, "d")
        store.prune()
    assert store.versions == (4, 5, 6, 7, 8, 9, 10, 11)
    assert [path.name for path in promised(store.folder / "11")] == ["10", "9", "7", "3"]


def test_a_server_that_comes_and_goes_gets_what_is_cheapest(store, tree):
    """A direct difference from whichever version it has, where there is one; else the whole."""
    trees = [tree]
    for seed in range(20):
        trees.append(updated(trees[-1], seed))
    puller, held = Puller(source="directory", manager=None, deltas=True), None
    manifests = {}
    for version, each in enumerate(trees):
        manifests[version] = written(store, version, each, "d")
        store.prune()
        if version not in (0, 1, 3, 7, 15, 18, 20):
            continue
        pulled = pull(puller, manifests[version])
        assert_holds(pulled, each)
        if held is not None:
            by_deltas = version - held in (1, 2, 4, 8)
            assert (pulled.fetched_bytes * 3 < manifests[version].num_bytes) == by_deltas, version
        held = version


def test_a_trainer_without_deltas_serves_a_server_that_asks(tmp_path, tree):
    store = SnapshotStore(tmp_path, dtype="bfloat16", keep=2)
    puller = Puller(source="directory", manager=None, deltas=True)
    for version in range(2):
        pulled = pull(puller, written(store, version, tree, "d"))
        assert_holds(pulled, tree)
        tree = updated(tree, version)
    assert not (tmp_path / "1" / FOLDER).exists()


def test_leaves_of_other_shapes_or_cut_in_another_way_are_fetched_whole(store, tree, monkeypatch):
    puller = Puller(source="directory", manager=None, deltas=True)
    pull(puller, written(store, 0, tree, "d"))
    other = updated(tree, 0)
    other["embed"] = {"table": other["embed"]["table"][:30]}
    other["more"] = np.ones(3, np.float32)
    assert_holds(pull(puller, written(store, 1, other, "d")), other)
    monkeypatch.setattr(shares, "MOST_CHUNK_BYTES", 3_000)
    monkeypatch.setattr(shares, "LEAST_CHUNK_BYTES", 1)
    cut = updated(other, 1)
    assert_holds(pull(puller, written(store, 2, cut, "d")), cut)


def test_a_base_that_was_written_to_is_found_out(store, tree):
    puller = Puller(source="directory", manager=None, deltas=True)
    held = pull(puller, written(store, 0, tree, "d"))
    held.params["layers"]["scale"][0, 0] = 2  # a leaf that does not change
    held.params["embed"]["table"][5, 5] += 1
    new = updated(tree, 0)
    manifest = written(store, 1, new, "d")
    pulled = pull(puller, manifest)
    assert_holds(pulled, new)
    assert pulled.fetched_bytes > sum(
        entry.size
        for entry in listed(manifest).files
        if entry.path.startswith(("embed", "layers.scale"))
    )


def test_another_trainer_has_published_the_same_number(store, tree, tmp_path):
    puller = Puller(source="directory", manager=None, deltas=True)
    pull(puller, written(store, 0, tree, "first life"))
    again = updated(tree, 7)
    written(store, 0, again, "second life")
    new = updated(again, 8)
    assert_holds(pull(puller, written(store, 1, new, "second life")), new)


def test_what_a_pull_gave_is_not_touched_by_the_next(store, tree):
    puller = Puller(source="directory", manager=None, deltas=True)
    first = pull(puller, written(store, 0, tree, "d"))
    pull(puller, written(store, 1, updated(tree, 0), "d"))
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
    pull(puller, written(store, 0, tree, "d"))
    middle, new = updated(tree, 1), updated(updated(tree, 1), 2)
    written(store, 1, middle, "d")
    manifest = written(store, 2, new, "d")
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


@pytest.mark.parametrize("source", ["http", "directory"])
@pytest.mark.parametrize("end", ["made", "abandoned", "never"])
def test_a_pack_that_is_being_made_is_waited_for(store, tree, source, end, monkeypatch):
    """Servers ask at once, the trainer has only begun, and nobody waits longer than is worth it."""
    patience = {"never": 0.1}.get(end, PATIENCE_SECONDS)
    monkeypatch.setattr(pack_fetch, "LEAST_PATIENCE_SECONDS", patience)
    fetched, answers = pack_fetch._fetched, []
    first, new = written(store, 0, tree, "d"), updated(tree, 0)
    last = store.write(1, new, "d")

    async def noted(*args):
        answers.append(await fetched(*args))
        if len(answers) == 2 and end != "never":
            await asyncio.to_thread(store.make_packs, last, lambda: end == "abandoned")
        return answers[-1]

    async def scenario():
        async with served(first) as (manager, _):
            here = source == "directory"
            puller = Puller(source=source, manager=None if here else manager, deltas=True)
            await puller.pull(first if here else remote(first))
            monkeypatch.setattr(pack_fetch, "_fetched", noted)
        async with served(last) as (manager, _):
            puller._manager = None if here else manager
            return await puller.pull(last if here else remote(last))

    pulled = asyncio.run(scenario())
    assert_holds(pulled, new)
    assert answers[:2] == [b"", b""] and len(answers) > 2
    assert bool(answers[-1]) == (end == "made")
    assert (answers[-1] is None) == (end == "abandoned")
    assert (pulled.fetched_bytes * 3 < last.num_bytes) == (end == "made")


def test_packs_have_the_adapters_and_not_the_base(store, tree):
    store.write_base(tree)
    adapters = {"lora": {"a": np.ones((64, 16), np.float32)}}
    puller = Puller(source="directory", manager=None, deltas=True)
    for version in range(2):
        pulled = pull(puller, written(store, version, adapters, "d"))
        assert_holds(pulled, {**tree, **adapters})
        adapters = {"lora": {"a": adapters["lora"]["a"] + np.eye(64, 16, dtype=np.float32)}}
    [pack] = promised(store.folder / "1")
    assert list(read_pack(pack.read_bytes())) == ["lora.a/0.0"]


def test_nothing_is_seen_half_written_and_what_is_abandoned_is_gone(store, tree):
    for version in range(3):
        written(store, version, tree, "d")
        tree = updated(tree, version)
    manifest, looks = store.write(3, tree, "d"), []

    def stop():
        packs = {path.name: path.read_bytes() for path in promised(store.folder / "3")}
        looks.append({name: bool(data and read_pack(data)) for name, data in packs.items()})
        return looks[-1]["2"]

    store.make_packs(manifest, stop)
    assert looks[0] == {"2": False, "1": False} and looks[-1] == {"2": True, "1": False}
    assert [path.name for path in (store.folder / "3" / FOLDER).iterdir()] == ["2"]


def test_packs_that_the_disk_does_not_take_are_promised_no_longer(store, tree, monkeypatch):
    """Else servers would wait for them; the nearest one, which was made, stays."""
    for version in range(3):
        written(store, version, tree, "d")
        tree = updated(tree, version)
    write, tries = delta_packs._write, []

    def full(path, *args):
        tries.append(path.name)
        if len(tries) > 1:
            raise OSError("no space left")
        write(path, *args)

    monkeypatch.setattr(delta_packs, "_write", full)
    manifest = store.write(3, tree, "d")
    with pytest.raises(OSError, match="no space left"):
        store.make_packs(manifest)
    assert [path.name for path in (store.folder / "3" / FOLDER).iterdir()] == ["2"]
    puller = Puller(source="directory", manager=None, deltas=True)
    assert_holds(pull(puller, manifest), tree)


@pytest.mark.parametrize("kind", ["broken", "endless"])
def test_a_server_that_breaks_off_or_never_ends_costs_a_whole_version(store, tree, kind):
    first = written(store, 0, tree, "d")
    new = updated(tree, 0)
    last = written(store, 1, new, "d")

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
    written(store, 0, tree, "d")
    manifest = written(store, 1, updated(tree, 0), "d")

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
