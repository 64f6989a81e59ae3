"""The whole loop with the learner spread over eight (simulated) devices."""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import abstract_state, make_optimizer
from rlboost_jax.models.params import flatten_params
from rlboost_jax.models.sharding import make_mesh
from rlboost_jax.settings.load import read_run_config, write_run_config
from tests.system.harness import PATIENT, SHORT, Run, complete, prepared

pytestmark = pytest.mark.system

SMALL = (
    *("seed=11", "num_steps=1", "fleet.max_instances=1", "warmup.max_updates=24"),
    *("task.mean_length=4.0", "task.max_length=12", "sampling.max_response_tokens=32"),
    *("learner.prompts_per_step=8", "learner.micro_batch_prompts=4", "algorithm.group_size=4"),
)


def params_at(run: Run, step: int) -> dict[str, np.ndarray]:
    """Of a checkpoint, whatever the mesh that saved it."""
    config = read_run_config(run.workdir)
    optimizer = make_optimizer(config.learner, config.num_steps)
    abstract = abstract_state(config.model, optimizer, make_mesh((1, 1, 1)))
    with Checkpoints(run.workdir / "checkpoints", keep=2) as checkpoints:
        state, _ = checkpoints.restore(step, abstract)
    return {name: np.asarray(leaf) for name, leaf in flatten_params(state.params).items()}


def change(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([(after[name] - before[name]).ravel() for name in before])


@pytest.mark.soak
def test_a_mesh_trains_what_one_device_trains(tmp_path, monkeypatch):
    """The mesh goes on from the first checkpoint of the other run. A warm-up of its own would
    end in other bits, because sums over shards round differently. So engines get the same
    parameters and must sample the same; the update may differ by rounding and no more.
    """
    one = complete(tmp_path / "one", *SMALL)
    with prepared(tmp_path / "mesh", *SMALL, "learner.mesh=(2, 2, 2)") as mesh:
        shutil.copytree(one.workdir / "checkpoints" / "0", mesh.workdir / "checkpoints" / "0")
        config = read_run_config(one.workdir)
        learner = replace(config.learner, mesh=(2, 2, 2))
        write_run_config(mesh.workdir, replace(config, learner=learner), "mesh")
        # Manager and servers inherit it: a server sees eight devices and uses the first.
        flags = os.environ.get("XLA_FLAGS", "")
        monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=8")
        mesh.start().finish()

    (expected,), (row,) = one.metrics(), mesh.metrics()
    assert row["trajectories_digest"] == expected["trajectories_digest"]
    assert row["accuracy"] == expected["accuracy"]
    assert row["reward_mean"] == expected["reward_mean"] > 0, "or there was nothing to learn"
    assert row["loss"] == pytest.approx(expected["loss"], abs=1e-5)
    assert row["entropy"] == pytest.approx(expected["entropy"], rel=1e-5)
    assert row["max_logprob_gap"] < 1e-4
    start, ours, theirs = params_at(one, 0), params_at(mesh, 1), params_at(one, 1)
    update, difference = change(start, theirs), change(theirs, ours)
    # Adam's first update is about the sign of the gradient, times the learning rate: where
    # the gradient is all but zero, rounding may turn it round.
    assert np.linalg.norm(update) > 0
    assert np.linalg.norm(difference) < 1e-3 * np.linalg.norm(update)


@pytest.mark.soak  # two runs of half a minute
def test_engines_of_two_devices_keep_the_promise(tmp_path, monkeypatch):
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count=2")
    two = (*SHORT, *PATIENT, "num_steps=8", "engine.tensor_parallel=2", "learner.mesh=(1, 1, 2)")
    alone = complete(tmp_path / "alone", *two, "fleet.max_instances=0")
    with prepared(tmp_path / "attacked", *two) as attacked:
        attacked.hold(version=2).start()
        with attacked.at_a_standstill(version=2) as still:
            for pid in still.at_work.values():
                os.kill(pid, signal.SIGKILL)
        attacked.finish()
    assert attacked.events("lost")
    assert attacked.digests() == alone.digests()
    assert all(row["max_logprob_gap"] < 1e-4 for row in alone.metrics())
