"""The processes of one trainer, on one or several reserved hosts: `jax.distributed`.

Process 0 leads: it alone talks to the manager, writes files for people and decides. The others
follow its orders (`leader.py`, `follower.py`), so that all run the same programs in the
same order. Rollout servers are no part of this.

Hosts of one trainer trust the network between them, as `jax.distributed` and the collectives of
accelerators do: neither encrypts. Our own messages need the key of the start (`handshake.py`).
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import jax
import msgspec
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from rlboost_jax.platform import foreign_json, proxies
from rlboost_jax.platform.jax_switches import check_switches
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.run_config import RunConfig

# A process that is killed is missed by its connections at once. One that is frozen, or whose
# host has lost its network, by the coordinator after this time; then all the others end.
HEARTBEAT_SECONDS: Final = 20
JOIN_SECONDS: Final = 300  # for all processes to be there
_CHOSEN: Final = ("attention", "experts")  # settings, by process 0 (`qualification/`)
_WORD_BYTES: Final = 2**16  # of what one process tells the others

Tell = Callable[[dict[str, Any] | None], dict[str, Any]]


class CannotJoin(RuntimeError):
    """The processes of the trainer do not find each other."""


class IdleProcess(Mistake, ValueError):
    """The mesh has no device of some process."""


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    """Number of this process among those of its trainer."""

    index: int
    count: int
    coordinator: str = ""  # HOST:PORT of process 0; "" where the cluster's environment had it

    @property
    def leads(self) -> bool:
        return self.index == 0


ALONE: Final = ProcessGroup(index=0, count=1)


def join(coordinator: str, count: int, index: int) -> ProcessGroup:
    """Meet the other processes. To be called before JAX is used in any other way.

    Args:
        coordinator: HOST:PORT that process 0 listens on; "" takes it, and the others, from the
            cluster's environment as JAX detects it: Slurm, Open MPI, Kubernetes, Cloud TPU.
        count: of processes.
        index: of this one.

    Raises:
        CannotJoin: not all are there within `JOIN_SECONDS`, or there is no such environment.
        ConfigError: a switch of JAX with which no run can be right.
    """
    check_switches()
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    try:
        with proxies.hidden():
            jax.distributed.initialize(
                **process_arguments(coordinator, count, index, os.environ),
                initialization_timeout=JOIN_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CannotJoin(
            f"process {index} of {count} did not meet the others at "
            f"{coordinator or 'what the cluster names'} in {JOIN_SECONDS} s: {reason}"
        ) from error
    return ProcessGroup(
        index=jax.process_index(), count=jax.process_count(), coordinator=coordinator
    )


def process_arguments(
    coordinator: str, count: int, index: int, environment: Mapping[str, str]
) -> dict[str, Any]:
    """Arguments of `jax.distributed.initialize` that JAX would not find by itself."""
    given: dict[str, Any] = {}
    if coordinator:
        given = {"coordinator_address": coordinator, "num_processes": count, "process_id": index}
    if alone_on_host(environment):
        given["local_device_ids"] = ()  # JAX would take the first one only
    return given


def alone_on_host(environment: Mapping[str, str]) -> bool:
    """Whether a launcher has started one process per host, which has all devices there.

    Without its word JAX takes processes for as many as devices, and gives each the one of its
    number on its host.
    """
    open_mpi = environment.get("OMPI_COMM_WORLD_LOCAL_SIZE")
    slurm = environment.get("SLURM_STEP_TASKS_PER_NODE")  # as 1 or 1(x2) or 2,1(x3)
    if slurm is not None:
        return {part.partition("(")[0] for part in slurm.split(",")} == {"1"}
    return open_mpi == "1"


def agreed(run: RunConfig, world: ProcessGroup) -> RunConfig:
    """Run configuration with the learner's kernels that process 0 chose, on every process.

    All have to call it at the same point of their starts: the others wait for process 0, which may
    have candidates to try. Nothing is exchanged where there is one process.
    """
    if world.count == 1:
        return run
    own = {name: getattr(run.learner, name) for name in _CHOSEN}
    return replace(run, learner=replace(run.learner, **tell_all(own if world.leads else None)))


def settled(
    changes: Sequence[Change], step: int, begins: int, world: ProcessGroup
) -> tuple[tuple[Change, ...], int]:
    """Process 0's setting changes after a step, and the run's first step, on every process.

    All have to call it at the same point of their starts.
    """
    ahead = tuple(each for each in changes if each.step > step)
    if world.count == 1:
        return ahead, begins
    own = {"changes": msgspec.to_builtins(ahead), "begins": begins}
    word = tell_all(own if world.leads else None)
    return msgspec.convert(word["changes"], tuple[Change, ...]), word["begins"]


def check_mesh(mesh: Mesh, world: ProcessGroup) -> None:
    """Raise IdleProcess if a process would have nothing to compute."""
    busy = {device.process_index for device in mesh.devices.flat}
    idle = sorted(set(range(world.count)) - busy)
    if idle:
        shape = tuple(mesh.shape.values())
        raise IdleProcess(
            f"learner.mesh {shape} has no device of process {idle[0]} of {world.count}; make it "
            f"as large as all {len(jax.devices())} devices, or start fewer processes"
        )


def tell_all(word: dict[str, Any] | None, *, source: int = 0) -> dict[str, Any]:
    """Broadcast a message of one process to every process; what the others pass is ignored."""
    said = json.dumps(word or {}).encode()
    assert len(said) < _WORD_BYTES
    padded = np.frombuffer(said.ljust(_WORD_BYTES), np.uint8)
    heard = multihost_utils.broadcast_one_to_all(padded, jax.process_index() == source)
    found: dict[str, Any] = foreign_json.decode(bytes(heard), "a process", dict)
    return found
