"""What process 0 has the others do, in the order in which all do it.

An order is a list: its name, then its arguments.

    begin   step                       the updates of a batch
    check   groups                     compare log-probabilities with what was said
    train   index, groups              take a micro-batch in
    finish                             make the updates
    gather  which                      send process 0 what it does not hold of the parameters that
                                       are trained, or of the base that they are added to
    save    step, extra                begin a checkpoint
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import jax
from jax.sharding import Sharding

from rlboost_jax.learner.trajectory import Group, Trajectory

BEGIN: Final = "begin"
CHECK: Final = "check"
TRAIN: Final = "train"
FINISH: Final = "finish"
GATHER: Final = "gather"
TRAINED: Final = "trained"
BASE: Final = "base"
SAVE: Final = "save"

Shard = tuple[tuple[slice, ...], int]  # what it is of an array, and the process that sends it


def groups_to_wire(groups: Iterable[Group]) -> list[list[Any]]:
    return [[group.prompt, [_fields(t) for t in group.trajectories]] for group in groups]


def groups_from_wire(groups: Iterable[Sequence[Any]]) -> tuple[Group, ...]:
    return tuple(
        Group(prompt=prompt, trajectories=tuple(Trajectory(**t) for t in trajectories))
        for prompt, trajectories in groups
    )


def _fields(trajectory: Trajectory) -> dict[str, Any]:
    return {f.name: getattr(trajectory, f.name) for f in dataclasses.fields(trajectory)}


def shards_to_send(sharding: Sharding, shape: tuple[int, ...]) -> Iterator[Shard]:
    """The parts of an array that process 0 does not hold, each from one process that does.

    The same list on every process, in the same order.
    """
    here: set[str] = set()
    others: dict[str, Shard] = {}
    device: Any
    for device, index in sharding.devices_indices_map(shape).items():
        if device.process_index == 0:
            here.add(str(index))
        else:
            known = others.get(str(index))
            if known is None or device.process_index < known[1]:
                others[str(index)] = (index, device.process_index)
    yield from (others[key] for key in sorted(others.keys() - here))


def local_part(array: jax.Array, index: tuple[slice, ...]) -> Any:
    """This process's copy of a part, on the host."""
    return next(s.data for s in array.addressable_shards if s.index == index)
