"""Which devices a process has that a launcher started; what JAX makes of it by itself."""

import pytest
from jax._src.clusters import ClusterEnv

from rlboost_jax.learner.processes.process_group import alone_on_host, process_arguments


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
    environment = {**SLURM, "SLURM_STEP_TASKS_PER_NODE": tasks}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    given = process_arguments("", 0, 0, environment)
    found = ClusterEnv.auto_detect_unset_distributed_params(
        given.get("coordinator_address"),
        given.get("num_processes"),
        given.get("process_id"),
        given.get("local_device_ids"),
        None,
        1,
    )
    _, count, index, ids = found[:4]
    assert (count, index, list(ids or ())) == (2, 1, devices)
