from pathlib import Path

import msgspec
import numpy as np
import pytest

from rlboost_jax.messages import Manifest
from rlboost_jax.weights.piece_lists import listed, write_list
from rlboost_jax.weights.snapshots import SnapshotStore


def relisted(manifest: Manifest, **changes) -> Manifest:
    """The manifest of a list that differs, which is written in place of its own."""
    folder = Path(manifest.directory)
    pieces = msgspec.structs.replace(listed(manifest), **changes)
    version, digest = manifest.version, manifest.params_digest
    return write_list(folder, pieces, version=version, params_digest=digest)


@pytest.fixture
def params():
    """A small tree; one leaf is all zeros, which storage layers like to leave out."""
    random = np.random.default_rng(0)
    return {
        "embed": {"table": random.normal(size=(40, 8)).astype(np.float32)},
        "layers": {
            "attention": {"query": {"kernel": random.normal(size=(2, 8, 16)).astype(np.float32)}},
            "norm": {"scale": np.zeros((2, 8), np.float32)},
        },
    }


@pytest.fixture
def store(tmp_path):
    return SnapshotStore(tmp_path / "snapshots", dtype="float32", keep=1)


@pytest.fixture
def manifest(store, params):
    return store.write(3, params, "digest")
