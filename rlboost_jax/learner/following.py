"""A follower: a process of the trainer that does what process 0 has it do, and nothing else.

It holds its share of the train state and makes every update that process 0 makes, from the same
trajectories, so that both run the same programs in the same order. What the programs return is
the same everywhere, and so is whatever follows from it: doubts, guards, numbers that are not
finite. It needs no manager, writes its part of each checkpoint, and ends when process 0 does.
"""

import socket
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rlboost_jax import exits
from rlboost_jax.learner import orders
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.control import Channel, PeerGone
from rlboost_jax.learner.processes import JOIN_SECONDS, World, tell_all
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.trajectory import Trajectory
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import Learner
from rlboost_jax.learner.watch import PeerEnded, Watch, loss_behind
from rlboost_jax.models.params import Params, flatten_params
from rlboost_jax.settings.errors import Mistake
from rlboost_jax.settings.load import read_run_id


class LeaderLost(PeerEnded):
    """Process 0 ended before the run was over."""


class OtherFolder(Mistake, RuntimeError):
    """The workdir of this process is not that of process 0."""


class Leader:
    """A follower's connection to process 0. A context manager: its end is known there."""

    def __init__(self, world: World, channel: Channel, watched: Channel) -> None:
        self._world, self._channel = world, channel
        self._watch = Watch(
            watched, lambda reason, code: LeaderLost(f"process 0 {reason}", exit_code=code)
        )

    def obey(self, learners: Learner, state: TrainState, checkpoints: Checkpoints) -> None:
        """Until the run is over.

        Raises:
            LeaderLost, and what an update raises on every process.
        """
        updates: BatchUpdate | None = None
        taken: dict[int, tuple[Trajectory, ...]] = {}  # by micro-batch
        while (order := self._next()) is not None:
            match order:
                case [orders.BEGIN, step]:
                    updates = BatchUpdate(learners, state, step=step, checkpoint=checkpoints.latest)
                    taken = {}
                case [orders.CHECK, told]:
                    learners.check(state, orders.groups_from_wire(told))
                case [orders.TRAIN, index, told]:
                    assert updates is not None
                    groups = orders.groups_from_wire(told)
                    taken[index] = tuple(t for group in groups for t in group.trajectories)
                    updates.train(index, groups)
                case [orders.FINISH]:
                    assert updates is not None
                    everything = [t for members in taken.values() for t in members]
                    everything.sort(key=lambda t: (t.prompt, t.sample))
                    prompts = sorted({t.prompt for t in everything})
                    state, _ = updates.finish(everything, prompts=prompts, host_params=None)
                case [orders.GATHER, orders.TRAINED]:
                    self._send_shards(state.params)
                case [orders.GATHER, orders.BASE]:
                    assert learners.policy.base is not None
                    self._send_shards(learners.policy.base)
                case [orders.SAVE, step, extra]:
                    checkpoints.save(step, state, extra)
                case _:
                    raise LeaderLost(
                        f"process 0 said {order[0]!r}, which is no order", exits.BROKEN
                    )

    def __enter__(self) -> "Leader":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loss = loss_behind(error, [self._watch])
        self._watch.end(error)
        self._channel.close()
        if loss is not None:
            raise loss from error

    def _next(self) -> list[Any] | None:
        """The next order; None when the run is over."""
        try:
            order: list[Any] = self._channel.receive()
            return order
        except PeerGone as error:
            loss = self._watch.verdict()
            if loss is None:
                return None
            raise loss from error

    def _send_shards(self, params: Params) -> None:
        for leaf in flatten_params(params).values():
            for index, process in orders.shards_to_send(leaf.sharding, leaf.shape):
                if process == self._world.index:
                    self._channel.send_array(np.asarray(orders.local_part(leaf, index)))


def accept(world: World, workdir: Path) -> Leader:
    """Dial process 0, which calls `invite` now.

    Raises:
        OtherFolder: checkpoints of all processes go to one folder.
        LeaderLost: it is not there.
    """
    word = tell_all(None)
    try:
        run_id = read_run_id(workdir)
    except ValueError:
        run_id = ""
    if run_id != word["run_id"]:
        raise OtherFolder(
            f"{workdir} is not the folder of process 0: its run is {word['run_id']}, here is "
            f"{run_id or 'none'}; give all processes one --workdir on a file system that they share"
        )
    try:
        channels = []
        for purpose in ("orders", "watch"):
            address = (word["host"], word["port"])
            connection = socket.create_connection(address, timeout=JOIN_SECONDS)
            connection.settimeout(None)
            channels.append(Channel(connection))
            channels[-1].send([word["token"], world.index, purpose])
    except OSError as error:
        where = f"{word['host']}:{word['port']}"
        raise LeaderLost(f"process 0 is not at {where}: {error}", exits.BROKEN) from error
    return Leader(world, *channels)
