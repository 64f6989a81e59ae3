"""Which devices a process has that a launcher started; what JAX makes of it by itself."""

import jax
import pytest
from jax._src.clusters import ClusterEnv

from rlboost_jax.learner.processes import world
from rlboost_jax.learner.processes.world import alone_on_host


@pytest.mark.parametrize(
    ("environment", "alone"),
    [
        ({}, False),  # started by hand: JAX takes all devices by itself
        ({"SLURM_STEP_TASKS_PER_NODE": "1"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, True),
        ({"SLURM_STEP_TASKS_PER_NODE": "8(x2)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "2,1(x3)"}, False),
        ({"SLURM_STEP_TASKS_PER_NODE": "12"}, False),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, True),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, False),
    ],
)
def test_one_process_on_each_host_has_all_devices_there(
    environment: dict[str, str], alone: bool
) -> None:
    assert alone_on_host(environment) is alone


SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NUM_NODES": "2",
}


@pytest.mark.parametrize(("tasks", "devices"), [("1(x2)", []), ("2", [0])])
def test_what_jax_makes_of_it(
    monkeypatch: pytest.MonkeyPatch, tasks: str, devices: list[int]
) -> None:
    """`[]` is no restriction; JAX would make it `[0]`, the first of eight."""
    for name, value in {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}.items():
        monkeypatch.setenv(name, value)
    seen: dict[str, object] = {}

    def initialize(**given: object) -> None:
        ids = given.get("local_device_ids")
        found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, ids, None, 1)  # type: ignore[arg-type]
        seen.update(count=found[1], index=found[2], devices=list(found[3] or ()))

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    world.join("", 0, 0)
    assert seen == {"count": 2, "index": 1, "devices": devices}
