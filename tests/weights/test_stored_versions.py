"""Versions in an object store: what is put, what is taken, and what is wrong with it."""

import asyncio
from pathlib import Path

import msgspec
import pytest

from rlboost_jax.platform.object_store import ObjectStore, StoreFailed
from rlboost_jax.trust.seal import sealed
from rlboost_jax.trust.snapshot_names import WeightsError
from rlboost_jax.weights.pull import Puller
from rlboost_jax.weights.snapshots import SnapshotStore
from rlboost_jax.weights.stored_versions import StoredVersions
from tests.object_stores import opened_store
from tests.weights.test_pull import SEAL, assert_same, remote, served

pytest.importorskip("obstore", reason="the extra store")


@pytest.fixture(params=["file", "s3"])
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
    assert len(names) == len(set(names)) == len({f.sha256 for f in (*first.files, *second.files)})
    assert store.prune() == (1,)
    left = {name.rpartition("/")[2] for name in objects.names("weights")}
    assert left == {entry.sha256 for entry in second.files}
    assert_same(pulled(second, objects)[0].params, params)


def test_another_process_of_the_run_finds_what_is_there_and_clears_it(
    manifest, objects, params, tmp_path, monkeypatch
):
    monkeypatch.setattr(objects, "put", lambda *_: pytest.fail("it is there"))
    again = SnapshotStore(
        tmp_path / "again", dtype="float32", keep=1, stored=StoredVersions(objects)
    )
    assert again.write(3, params, "digest").files == manifest.files
    objects.claim("weights/" + "0" * 64, b"of before")
    fresh = StoredVersions(objects)
    fresh.put(3, tmp_path, ())
    fresh.keep([])
    assert objects.names("weights") == []


@pytest.mark.parametrize("damage", ["missing", "other", "short", "long"])
def test_what_is_not_the_manifest_s_is_refused_or_had_from_the_trainer(
    manifest, objects, params, damage
):
    entry = max(manifest.files, key=lambda entry: entry.size)
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
    assert first.files == third.files


def test_without_a_store_on_this_host_a_line_says_so(manifest):
    wanted = sealed(msgspec.structs.replace(manifest, directory="/nowhere"), SEAL)

    async def scenario():
        async with served(manifest) as (manager, _):
            await Puller(source="store", manager=manager).pull(wanted)

    with pytest.raises(WeightsError, match=r"weights.store cannot be opened here"):
        asyncio.run(scenario())
