"""What all versions have is written once, fetched once, and known by its digests."""

import asyncio
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.pull import Puller, WeightsError
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.weights.test_pull import remote, served


def tree(*leaves, seed=0):
    random = np.random.default_rng(seed)
    return {
        "layers": {
            "query": {leaf: random.normal(size=(2, 8, 6)).astype(np.float32) for leaf in leaves}
        }
    }


@pytest.fixture
def base():
    return {**tree("kernel"), "embed": {"table": np.ones((40, 8), np.float32)}}


@pytest.fixture
def with_base(store, base):
    store.write_base(base)
    return store


def own_bytes(folder):
    """Bytes of files that no other folder has a name for."""
    files = [path.stat() for path in Path(folder).rglob("*") if path.is_file()]
    return sum(file.st_size for file in files if file.st_nlink == 1)


def pull(puller, manifest):
    return asyncio.run(puller.pull(manifest))


def assert_holds(params, base, adapters):
    assert set(params) == {"embed", "layers"}
    query = params["layers"]["query"]
    assert set(query) == {"kernel", "lora_a", "lora_b"}
    np.testing.assert_array_equal(query["kernel"], base["layers"]["query"]["kernel"])
    np.testing.assert_array_equal(params["embed"]["table"], base["embed"]["table"])
    for name in ("lora_a", "lora_b"):
        np.testing.assert_array_equal(query[name], adapters["layers"]["query"][name])


def test_a_version_takes_the_room_of_its_adapters(with_base, tmp_path):
    manifest = with_base.write(3, tree("lora_a", "lora_b"), "digest")
    adapters = 2 * 4 * 2 * 8 * 6
    notes = 2_000  # the shapes of the arrays
    assert adapters <= own_bytes(manifest.directory) < adapters + notes
    lasting = {leaf.name for leaf in listed(manifest).leaves if leaf.lasting}
    assert lasting == {"layers.query.kernel", "embed.table"}


def test_what_lasts_is_fetched_once(with_base, base):
    puller = Puller(source="directory", manager=None)
    first, second = (tree("lora_a", "lora_b", seed=seed) for seed in (1, 2))
    manifest = with_base.write(0, first, "first")
    pulled = pull(puller, manifest)
    assert_holds(pulled.params, base, first)
    assert pulled.fetched_bytes == manifest.num_bytes
    kernel = pulled.params["layers"]["query"]["kernel"]

    manifest = with_base.write(1, second, "second")
    pulled = pull(puller, manifest)
    assert_holds(pulled.params, base, second)
    own = [entry.size for entry in listed(manifest).files if "lora" in entry.path]
    assert pulled.fetched_bytes == manifest.list_bytes + sum(own)
    assert sum(own) < 1_500
    assert pulled.params["layers"]["query"]["kernel"] is kernel


def test_over_http_too(with_base, base):
    """Where a version's folder is all that the manager serves of it."""

    async def scenario():
        puller, requests = None, []
        for version in range(2):
            manifest = with_base.write(version, tree("lora_a", "lora_b", seed=version), "digest")
            async with served(manifest) as (manager, seen):
                puller = puller or Puller(source="http", manager=manager)
                puller._manager = manager  # of this version's server
                pulled = await puller.pull(remote(manifest))
                requests.append([asked for _, asked in seen])
        return pulled, requests, manifest

    pulled, (first, second), manifest = asyncio.run(scenario())
    assert_holds(pulled.params, base, tree("lora_a", "lora_b", seed=1))
    of_list = f"bytes=0-{manifest.list_bytes - 1}"
    assert first == [of_list, f"bytes=0-{manifest.piece_bytes - 1}"]
    assert second.pop(0) == of_list
    asked, offset = set(), 0
    for entry in listed(manifest).files:
        if "lora" in entry.path:
            asked |= set(range(offset, offset + entry.size))
        offset += entry.size
    ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", each) for each in second]
    assert asked == {n for r in ranges for n in range(int(r[1]), int(r[2]) + 1)}


def test_a_trainer_that_comes_back_has_the_same_base(tmp_path, base):
    """It writes all of it anew; a server that lived on fetches none of it again."""
    puller = Puller(source="directory", manager=None)
    for life in range(2):
        store = SnapshotStore(tmp_path, dtype="float32", keep=1)
        store.write_base(base)
        adapters = tree("lora_a", "lora_b", seed=life)
        manifest = store.write(life, adapters, "digest")
        pulled = pull(puller, manifest)
        assert_holds(pulled.params, base, adapters)
    assert pulled.fetched_bytes - manifest.list_bytes < 1_500


def test_another_base_is_fetched(with_base, base):
    puller = Puller(source="directory", manager=None)
    adapters = tree("lora_a", "lora_b")
    pull(puller, with_base.write(0, adapters, "first"))
    other = {**base, "embed": {"table": np.zeros((40, 8), np.float32)}}
    with_base.write_base(other)
    manifest = with_base.write(1, adapters, "second")
    pulled = pull(puller, manifest)
    assert_holds(pulled.params, other, adapters)
    came = pulled.fetched_bytes - manifest.list_bytes
    assert 4 * 40 * 8 < came < 4 * 40 * 8 + 1_500  # the table, not the kernel


def test_what_changes_is_not_kept(store, base):
    """Where everything is trained a server's memory holds no version besides the engine's."""
    puller = Puller(source="directory", manager=None)
    for version in range(2):
        manifest = store.write(version, base, "digest")
        pulled = pull(puller, manifest)
        assert pulled.fetched_bytes >= manifest.piece_bytes
    assert not puller._kept._kept


def test_a_pull_that_fails_keeps_what_was_there(with_base, base):
    puller = Puller(source="directory", manager=None)
    adapters = tree("lora_a", "lora_b")
    pull(puller, with_base.write(0, adapters, "first"))
    manifest = with_base.write(1, adapters, "second")
    broken = msgspec.structs.replace(manifest, directory="/nowhere")
    with pytest.raises(WeightsError, match=r"lora_[ab]"):
        pull(puller, broken)
    assert_holds(pull(puller, manifest).params, base, adapters)


def test_old_versions_go_and_the_base_stays(with_base, tmp_path):
    for version in range(3):
        with_base.write(version, tree("lora_a"), "digest")
    assert with_base.prune() == (0, 1)
    manifest = with_base.write(3, tree("lora_a"), "digest")
    for entry in listed(manifest).files:
        assert (Path(manifest.directory) / entry.path).stat().st_size == entry.size
