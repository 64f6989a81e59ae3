"""The whole loop with the learner spread over eight (simulated) devices."""

import os
import signal

import numpy as np
import pytest

from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.state import abstract_state, make_optimizer
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import flatten_params
from rlboost_jax.settings.config_loading import read_changes, read_run_config
from tests.system.harness import PATIENT, SHORT, Run, complete, prepared, running

pytestmark = pytest.mark.system

SMALL = (
    *("seed=11", "num_steps=1", "fleet.max_instances=1", "warmup.max_updates=24"),
    *("task.mean_length=4.0", "task.max_length=12", "sampling.max_response_tokens=32"),
    *("learner.prompts_per_step=8", "learner.micro_batch_prompts=4", "algorithm.group_size=4"),
)


def params_at(run: Run, step: int) -> dict[str, np.ndarray]:
    """Parameters of a checkpoint, whatever the mesh that saved it."""
    config = read_run_config(run.workdir)
    optimizer = make_optimizer(config.learner, config.num_steps)
    abstract = abstract_state(config.model, optimizer, make_mesh((1, 1, 1)))
    with Checkpoints(run.workdir / "checkpoints", keep=2) as checkpoints:
        state, _ = checkpoints.restore(step, abstract)
    return {name: np.asarray(leaf) for name, leaf in flatten_params(state.params).items()}


def change(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([(after[name] - before[name]).ravel() for name in before])


def devices(monkeypatch, count):
    """Have all processes of runs see so many."""
    flags = os.environ.get("XLA_FLAGS", "")
    monkeypatch.setenv("XLA_FLAGS", f"{flags} --xla_force_host_platform_device_count={count}")


@pytest.mark.soak  # programs of two meshes; `learner/test_changed_mesh.py` has whole sessions
def test_a_run_whose_host_came_back_with_fewer_devices_goes_on(tmp_path, monkeypatch):
    """In the step that it was killed in, with the tokens that its first mesh has sampled."""
    settings = (
        *(*SMALL, "num_steps=2", "warmup.max_updates=2", "warmup.habit_updates=0"),
        *("model.num_layers=1", "model.embed_dim=32", "fleet.max_instances=0"),
        "evaluation.every_steps=0",
    )
    devices(monkeypatch, 4)
    with running(tmp_path / "run", *settings, "learner.mesh=(1, 4, 1)") as run:
        run.wait_until(run.metrics, "first row")
        run.kill()
        run.close()
    devices(monkeypatch, 2)
    again = complete(tmp_path / "run", *settings, "learner.mesh=(2, 1, 1)")
    assert [row["step"] for row in again.metrics()] == [0, 1]
    first = max(each.step for each in read_changes(again.workdir))
    assert first in (0, 1)
    said = again.process.output
    assert f"changed from step {first} on: learner.mesh (1, 4, 1) → (2, 1, 1)" in said
    assert f"the state of step {first} has the bits that were saved" in said
    assert [row["learner_devices"] for row in again.metrics()][-1] == 2
    assert f"step {first}: learner.mesh (1, 4, 1) → (2, 1, 1)" in str(again.events("changed"))
    again.assert_accounts_hold()


@pytest.mark.soak
def test_a_mesh_trains_what_one_device_trains(tmp_path, monkeypatch):
    """The mesh begins with the first checkpoint of the other run. A warm-up of its own would
    end in other bits, because sums over shards round differently. So engines get the same
    parameters and must sample the same; the update may differ by rounding and no more.
    """
    one = complete(tmp_path / "one", *SMALL)
    devices(monkeypatch, 8)  # a server sees all of them and uses the first
    fork = (f"--fork={one.workdir}@0",)
    mesh = complete(tmp_path / "mesh", *SMALL, "learner.mesh=(2, 2, 2)", options=fork)

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
    devices(monkeypatch, 2)
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
