"""A run goes on from the weights it began with, wherever they lie by now."""

import shutil

import numpy as np
import pytest
from safetensors.numpy import save_file

from rlboost_jax.learner.checkpoints.origin import OriginChanged, keep_origin


@pytest.fixture
def workdir(tmp_path):
    (tmp_path / "run").mkdir()
    return tmp_path / "run"


@pytest.fixture
def source(tmp_path):
    return checkpoint(tmp_path / "source", seed=0)


def checkpoint(folder, *, seed):
    folder.mkdir()
    rng = np.random.default_rng(seed)
    tensors = {name: rng.standard_normal((3, 4), np.float32) for name in ("a", "b")}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_copy_elsewhere_is_the_same(workdir, source, tmp_path):
    keep_origin(workdir, str(source))
    moved = shutil.move(source, tmp_path / "moved")
    keep_origin(workdir, str(moved))
    shutil.rmtree(moved)
    keep_origin(workdir, str(moved))  # the name of before: the weights are not needed any more


def test_another_model_of_the_same_shapes_is_refused(workdir, source, tmp_path):
    keep_origin(workdir, str(source))
    other = checkpoint(tmp_path / "other", seed=1)
    for name in (str(other), ""):
        with pytest.raises(OriginChanged, match=f"model.source is '{name}'.*{source}"):
            keep_origin(workdir, name)


def test_what_began_from_scratch_goes_on_so(workdir, source):
    keep_origin(workdir, "")
    with pytest.raises(OriginChanged, match=f"model.source is '{source}'"):
        keep_origin(workdir, str(source))
    keep_origin(workdir, "")
