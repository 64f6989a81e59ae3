import hashlib
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import orbax.checkpoint as ocp
import pytest

from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.weights.reading import read_params


def test_the_manifest_tells_what_is_on_disk(manifest, params):
    assert (manifest.version, manifest.params_digest) == (3, "digest")
    leaves = {leaf.name: (leaf.shape, leaf.dtype) for leaf in listed(manifest).leaves}
    assert leaves == {
        "embed.table": ((40, 8), "float32"),
        "layers.attention.query.kernel": ((2, 8, 16), "float32"),
        "layers.norm.scale": ((2, 8), "float32"),
    }
    for entry in listed(manifest).files:
        data = (Path(manifest.directory) / entry.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (entry.size, entry.sha256)
    # Plain arrays, uncompressed: their bytes are on disk as they are in memory.
    array_bytes = sum(e.size for e in listed(manifest).files if not e.path.endswith(".zarray"))
    assert array_bytes == 4 * (40 * 8 + 2 * 8 * 16 + 2 * 8)
    table = (Path(manifest.directory) / "embed.table/0.0").read_bytes()
    assert table == params["embed"]["table"].tobytes()


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16)])
def test_reads_back_in_the_rollout_dtype(tmp_path, params, dtype):
    store = SnapshotStore(tmp_path, dtype=dtype.name, keep=1)
    manifest = store.write(0, params, "d")
    found = read_params(Path(manifest.directory), listed(manifest))
    kernel = found["layers"]["attention"]["query"]["kernel"]
    wanted = params["layers"]["attention"]["query"]["kernel"].astype(dtype)
    assert kernel.dtype == dtype and kernel.tobytes() == wanted.tobytes()
    assert not found["layers"]["norm"]["scale"].any()


def test_orbax_restores_it_too(manifest, params):
    handler = ocp.PyTreeCheckpointHandler(use_ocdbt=False)
    restored = ocp.Checkpointer(handler).restore(manifest.directory)
    np.testing.assert_array_equal(restored["embed"]["table"], params["embed"]["table"])


def test_prune_keeps_the_newest_and_those_in_use(tmp_path, params):
    store = SnapshotStore(tmp_path, dtype="float32", keep=2)
    for version in range(6):
        store.write(version, params, "d")
    assert store.prune(in_use={1, 99}) == (0, 2, 3)
    assert store.versions == (1, 4, 5)
    assert {path.name for path in tmp_path.iterdir()} == {
        "1",
        "1.pieces",
        "4",
        "4.pieces",
        "5",
        "5.pieces",
    }
    assert store.prune() == (1,)


def test_newest_is_what_was_written_last(tmp_path, params):
    """A run resumed from step 2 writes versions 3, … again beside the 7 of its first life."""
    first = SnapshotStore(tmp_path, dtype="float32", keep=1)
    for version in (6, 7):
        first.write(version, params, "d")
    again = SnapshotStore(tmp_path, dtype="float32", keep=1)
    assert again.versions == (6, 7)
    again.write(3, params, "d")
    assert again.prune() == (6, 7) and again.versions == (3,)


def test_of_one_moment_the_larger_number_is_newer(tmp_path, params):
    """As a clock may say that ticks a hundred times a second."""
    first = SnapshotStore(tmp_path, dtype="float32", keep=9)
    for version in range(9):
        first.write(version, params, "d")
        os.utime(tmp_path / str(version), ns=(0, 0))
    assert SnapshotStore(tmp_path, dtype="float32", keep=9).versions == tuple(range(9))


def test_a_version_written_again_is_replaced(store, manifest, params):
    other = {**params, "embed": {"table": params["embed"]["table"] + 1}}
    replaced = store.write(3, other, "other")
    found = read_params(Path(replaced.directory), listed(replaced))
    np.testing.assert_array_equal(found["embed"]["table"], other["embed"]["table"])
    assert store.versions == (3,)


def test_a_half_written_version_is_not_there(tmp_path, params):
    def interrupted(*_):
        raise KeyboardInterrupt  # between the last byte and the rename

    store = SnapshotStore(tmp_path, dtype="float32", keep=1, others=interrupted)
    with pytest.raises(KeyboardInterrupt):
        store.write(5, params, "d")
    assert store.versions == () and not (tmp_path / "5").exists()
    assert any(tmp_path.iterdir())
    assert SnapshotStore(tmp_path, dtype="float32", keep=1).versions == ()
    assert not any(tmp_path.iterdir())  # and its remains are cleared away


def test_integers_keep_their_dtype(tmp_path):
    store = SnapshotStore(tmp_path, dtype="bfloat16", keep=1)
    manifest = store.write(0, {"count": np.arange(5, dtype=np.int32)}, "d")
    assert listed(manifest).leaves[0].dtype == "int32"


def test_keeping_none_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"weights\.keep_versions = 0"):
        SnapshotStore(tmp_path, dtype="float32", keep=0)
