"""Versions in an object store: what is put, what is taken, and what is wrong with it."""

import asyncio
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.trust.seal import sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights import pack_fetch
from rlboost_jax.weights.piece_lists import list_entry, listed
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from rlboost_jax.weights.stored_versions import StoredVersions, stored_pack
from tests.faulty_http import EXPIRED, SLOW_DOWN, Answer, Cut, faulty
from tests.object_stores import KINDS, address_of, opened_store
from tests.patience import PATIENCE_SECONDS
from tests.weights.test_pull import SEAL, assert_same, remote, served

pytest.importorskip("obstore", reason="the extra store")


@pytest.fixture(params=KINDS)
def objects(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    return opened_store(request.param, tmp_path, monkeypatch)


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def store(objects: ObjectStore, tmp_path: Path, lines: list[str]) -> SnapshotStore:
    stored = StoredVersions(objects, lines.append)
    return SnapshotStore(tmp_path / "snapshots", dtype="float32", keep=1, stored=stored)


def pulled(manifest, objects, *, source="store"):
    """As a host does that sees neither the trainer's disk nor its port for weights."""

    async def scenario():
        async with served(manifest) as (manager, seen):
            puller = Puller(source=source, manager=manager, store=objects)
            return await puller.pull(remote(manifest)), seen

    return asyncio.run(scenario())


@pytest.mark.parametrize("source", ["store", "auto"])
def test_a_version_comes_from_the_store_and_not_from_the_trainer(manifest, objects, params, source):
    found, seen = pulled(manifest, objects, source=source)
    assert_same(found.params, params)
    assert found.fetched_bytes == manifest.num_bytes and not seen


def test_files_that_versions_share_are_put_once_and_old_ones_deleted(
    store, objects, params, monkeypatch
):
    put, names = objects.put, []
    monkeypatch.setattr(objects, "put", lambda name, data: (names.append(name), put(name, data)))
    first = store.write(1, params, "one")
    params["embed"]["table"] += 1
    second = store.write(2, params, "two")
    one, two = (
        {f.sha256 for f in (*listed(each).files, list_entry(each))} for each in (first, second)
    )
    assert len(names) == len(set(names)) == len(one | two)
    assert store.prune() == (1,)
    left = {name.rpartition("/")[2] for name in objects.names("weights")}
    assert left == two
    assert_same(pulled(second, objects)[0].params, params)


def test_another_process_of_the_run_finds_what_is_there_and_clears_it(
    manifest, objects, params, tmp_path, monkeypatch
):
    monkeypatch.setattr(objects, "put", lambda *_: pytest.fail("it is there"))
    again = SnapshotStore(
        tmp_path / "again", dtype="float32", keep=1, stored=StoredVersions(objects)
    )
    assert again.write(3, params, "digest").list_sha256 == manifest.list_sha256
    objects.claim("weights/" + "0" * 64, b"of before")
    fresh = StoredVersions(objects)
    fresh.put(3, tmp_path, ())
    fresh.keep([])
    assert objects.names("weights") == []


@pytest.mark.parametrize("damage", ["missing", "other", "short", "long"])
def test_what_is_not_the_manifest_s_is_refused_or_had_from_the_trainer(
    manifest, objects, params, damage
):
    entry = max(listed(manifest).files, key=lambda entry: entry.size)
    name = f"weights/{entry.sha256}"
    match damage:
        case "missing":
            objects.delete([name])
        case "other":
            objects.put(name, b"x" * entry.size)
        case "short":
            objects.put(name, b"x")
        case "long":
            objects.put(name, b"x" * (entry.size + 1))
    with pytest.raises(WeightsError, match=entry.path):
        pulled(manifest, objects)
    found, seen = pulled(manifest, objects, source="auto")
    assert_same(found.params, params)
    assert seen  # over HTTP


def test_a_store_that_fails_costs_a_line_and_not_the_version(
    store, objects, params, lines, monkeypatch
):
    put = objects.put

    def fails(name, data):
        raise StoreFailed("cannot put it: slow down")

    monkeypatch.setattr(objects, "put", fails)
    first = store.write(1, params, "one")
    second = store.write(2, params, "two")
    assert len(lines) == 1 and "version 1 is not whole in weights.store" in lines[0]
    assert_same(pulled(second, objects, source="auto")[0].params, params)
    monkeypatch.setattr(objects, "put", put)
    third = store.write(3, params, "three")
    assert_same(pulled(third, objects)[0].params, params)
    assert first.list_sha256 == third.list_sha256


def test_without_a_store_on_this_host_a_line_says_so(manifest):
    wanted = sealed(msgspec.structs.replace(manifest, directory="/nowhere"), SEAL)

    async def scenario():
        async with served(manifest) as (manager, _):
            await Puller(source="store", manager=manager).pull(wanted)

    with pytest.raises(WeightsError, match=r"weights.store cannot be opened here"):
        asyncio.run(scenario())


def test_differences_come_from_the_store_too(objects, params, tmp_path, monkeypatch):
    """Two servers at once, one version apart, and one that joins; then the store loses a pack."""
    monkeypatch.setattr(pack_fetch, "LEAST_PATIENCE_SECONDS", PATIENCE_SECONDS)
    stored = StoredVersions(objects)
    store = SnapshotStore(tmp_path / "with", dtype="bfloat16", keep=1, deltas=(1, 2), stored=stored)

    async def pulled_by(puller: Puller, manifest):
        return await puller.pull(remote(manifest))

    async def scenario():
        newest = store.write(0, params, "digest 0")
        async with served(newest) as (manager, seen):
            often, seldom = (
                Puller(source="store", manager=manager, store=objects, deltas=True)
                for _ in range(2)
            )
            for puller in (often, seldom):
                await pulled_by(puller, newest)
            for version in (1, 2, 3):
                params["embed"]["table"][version] += 1
                newest = store.write(version, params, f"digest {version}")
                ahead = asyncio.ensure_future(pulled_by(often, newest))
                assert stored_pack(objects, version, version - 1, 0) == b"", "it is being made"
                await asyncio.to_thread(store.make_packs, newest)
                found = await ahead
                assert found.fetched_bytes - newest.list_bytes < newest.piece_bytes / 4
                if version == 2:
                    found = await pulled_by(seldom, newest)
                    assert found.fetched_bytes - newest.list_bytes < newest.piece_bytes / 4
            packs = [f"packs/{name}" for name in ("1/0", "2/0", "2/1", "3/1", "3/2")]
            assert objects.names("packs") == packs
            objects.delete(["packs/3/2"])
            found = await pulled_by(seldom, newest)
            came = found.fetched_bytes - newest.list_bytes
            assert newest.piece_bytes / 4 < came < newest.piece_bytes  # one leaf
            whole = await pulled_by(Puller(source="store", manager=manager, store=objects), newest)
            assert not seen, "nothing came from the trainer"
            assert_same(found.params, whole.params)
            store.prune()  # all but two versions
            assert objects.names("packs") == packs[1:4]
            store.make_packs(store.write(4, params, "digest 4"), lambda: True)
            assert objects.names("packs") == packs[1:4], "those of the last were abandoned"

    store.write(9, params, "of before a restart")
    stored.keep([])
    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_trainer_that_dies_while_it_puts_a_version_is_gone_on_with(
    objects, params, tmp_path, monkeypatch, after
):
    """No manifest has left it; the next start puts the rest, and what nobody needs goes."""
    put, names = objects.put, []

    def dies(name, data):
        if len(names) == after:
            raise KeyboardInterrupt
        names.append(name)
        put(name, data)

    def snapshots(folder):
        stored = StoredVersions(objects)
        return SnapshotStore(tmp_path / folder, dtype="float32", keep=1, stored=stored)

    monkeypatch.setattr("rlboost_jax.weights.stored_versions._AT_A_TIME", 1)
    monkeypatch.setattr(objects, "put", dies)
    with pytest.raises(KeyboardInterrupt):
        snapshots("first").write(1, params, "one")
    there = set(objects.names("weights"))
    assert there == set(names)
    monkeypatch.setattr(objects, "put", lambda name, data: (names.append(name), put(name, data)))
    again = snapshots("second")
    params["embed"]["table"] += 1  # the update came out otherwise
    manifest = again.write(1, params, "another")
    assert len(names) == len(set(names)), "what was there is not put again"
    again.prune()
    every = (*listed(manifest).files, list_entry(manifest))
    assert set(objects.names("weights")) == {f"weights/{each.sha256}" for each in every}
    assert_same(pulled(manifest, objects)[0].params, params)


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_a_bad_line_to_the_store_changes_no_bit(kind, params, tmp_path, monkeypatch):
    with faulty(address_of(kind)) as server:
        objects = opened_store(kind, tmp_path, monkeypatch, address=server.address)
        stored = StoredVersions(objects, pytest.fail)
        store = SnapshotStore(tmp_path / "bad", dtype="float32", keep=1, stored=stored)
        params["embed"]["table"] = np.arange(2**20, dtype=np.float32).reshape(1024, 1024)
        server.next_ones([SLOW_DOWN, Answer(500), SLOW_DOWN])
        manifest = store.write(1, params, "one")
        server.next_ones([Cut(1_000_000), Answer(503), Cut(7), SLOW_DOWN], "GET")
        found, seen = pulled(manifest, objects)
    assert_same(found.params, params)
    assert not seen


@pytest.mark.parametrize("kind", ["s3", "gs", "az"])
def test_expired_credentials_cost_a_line_here_and_one_there(
    kind, params, tmp_path, monkeypatch, lines
):
    with faulty(address_of(kind)) as server:
        objects = opened_store(
            kind, tmp_path, monkeypatch, address=server.address, setting="weights.store"
        )
        stored = StoredVersions(objects, lines.append)
        store = SnapshotStore(tmp_path / "bad", dtype="float32", keep=1, stored=stored)
        first = store.write(1, params, "one")
        server.fault = lambda method, path: EXPIRED
        with pytest.raises(WeightsError, match=r"refused \(ExpiredToken\); weights\.store takes"):
            pulled(first, objects)
        params["embed"]["table"] += 1
        second = store.write(2, params, "two")
        assert_same(pulled(second, objects, source="auto")[0].params, params)
    assert len(lines) == 1
    assert "version 2 is not whole in weights.store" in lines[0] and "ExpiredToken" in lines[0]
