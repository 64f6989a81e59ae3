"""A process of the trainer other than process 0, whose orders it carries out.

It holds its share of the train state and makes every update that process 0 makes, from the same
trajectories, so that both run the same programs in the same order. What the programs return is
the same everywhere, and so is whatever follows from it: doubts, guards, numbers that are not
finite. It needs no manager, writes its share of each checkpoint and of each version, and ends
when process 0 does.
"""

import contextlib
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from rlboost_jax.data.open import ends_of
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.compiling import show_compiles
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.kept_versions import DIGESTS, KeptVersions, restored_versions
from rlboost_jax.learner.processes import follower_orders
from rlboost_jax.learner.processes.digest import shared_digest
from rlboost_jax.learner.processes.handshake import Key, dial, tls_of
from rlboost_jax.learner.processes.leader import PURPOSES
from rlboost_jax.learner.processes.peer_watch import PeerEnded, Peers
from rlboost_jax.learner.processes.process_group import (
    JOIN_SECONDS,
    ProcessGroup,
    Tell,
    agreed,
    check_mesh,
    settled,
    tell_all,
)
from rlboost_jax.learner.processes.trainer_channel import PeerGone, TrainerChannel
from rlboost_jax.learner.setup import kernels
from rlboost_jax.learner.setup.preparation import (
    lies_elsewhere,
    prepared,
    programs,
    restore,
)
from rlboost_jax.learner.state import TrainState
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import Learner, learner_of
from rlboost_jax.learner.workdir import check_code
from rlboost_jax.models.collectives import add_in_order
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import Params
from rlboost_jax.platform import compile_cache, exits
from rlboost_jax.platform.mistakes import Mistake
from rlboost_jax.platform.pulse import ORDERS, PULSE
from rlboost_jax.platform.stacks import StacksFile, stacks_path
from rlboost_jax.sequences.identities import Version
from rlboost_jax.settings.changes import settings_at
from rlboost_jax.settings.run_config import RunConfig
from rlboost_jax.weights.shares import shares_of, write_shares
from rlboost_jax.weights.snapshots import BASE, FOLDER, beside


class LeaderLost(PeerEnded):
    """Process 0 ended before the run was over."""


class OtherFolder(Mistake, RuntimeError):
    """The workdir of this process is not that of process 0."""


class _Silence:
    """Console of a process that prints nothing."""

    def phase(self, name: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def note(self, line: str) -> None:
        pass


class Leader(Peers):
    """A follower's connection to process 0."""

    def __init__(self, world: ProcessGroup, workdir: Path, **channels: TrainerChannel) -> None:
        """Wrap the connection to process 0.

        Args:
            channels: by purpose.
        """
        super().__init__({purpose: [each] for purpose, each in channels.items()}, [_lost])
        self._world, self._snapshots = world, workdir / FOLDER
        self._channel, self._shares = channels["orders"], channels["shares"]
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="shares")

    def obey(
        self,
        learner: Learner,
        state: TrainState,
        checkpoints: Checkpoints,
        versions: KeptVersions,
    ) -> bool:
        """Carry out orders until the session is over; return whether another one follows.

        Args:
            versions: older ones, to begin with.

        Raises:
            LeaderLost, and what an update raises on every process.
        """
        updates: BatchUpdate | None = None
        taken: dict[int, tuple[Trajectory, ...]] = {}  # by micro-batch
        dtype, shardings = learner.run.weights.rollout_dtype, learner.policy.shardings.params

        def named(name: str) -> Params:
            if name == BASE:
                return learner.policy.base or {}
            if (version := Version(int(name))) in versions:
                return versions.on_devices(version, shardings)
            return state.params

        again = False
        while (order := self._next()) is not None:
            match order:
                case [follower_orders.BEGIN, step, version]:
                    updates = BatchUpdate(
                        learner,
                        state,
                        step=step,
                        checkpoint=checkpoints.latest,
                        version=version,
                        sampler=versions.sampler(version, step, shardings),
                    )
                    taken = {}
                case [follower_orders.CHECK, sent]:
                    assert updates is not None
                    updates.check(follower_orders.groups_from_wire(sent))
                case [follower_orders.HELDOUT, sent]:
                    groups = follower_orders.groups_from_wire(sent)
                    if updates is not None:
                        updates.check_heldout(groups)
                    else:  # of the last version, once all batches are over
                        learner.check(state.params, groups, heldout=True)
                case [follower_orders.TRAIN, index, sent]:
                    assert updates is not None
                    groups = follower_orders.groups_from_wire(sent)
                    taken[index] = tuple(t for group in groups for t in group.trajectories)
                    updates.train(index, groups)
                case [follower_orders.FINISH]:
                    assert updates is not None
                    everything = [t for members in taken.values() for t in members]
                    everything.sort(key=lambda t: (t.prompt, t.sample))
                    prompts = sorted({t.prompt for t in everything})
                    state, _ = updates.finish(everything, prompts=prompts, host_params=None)
                    updates = None
                    PULSE.step()
                case [follower_orders.WRITE, name]:
                    shares = shares_of(named(name), process=self._world.index)
                    self._writer.submit(self._write, name, shares, dtype)
                case [follower_orders.DIGEST, name, base]:
                    shared_digest(named(name), self._world, base=base)
                case [follower_orders.KEEP, version, digest, older]:
                    versions.forget(older)
                    versions.keep(version, state.params, digest, dtype=dtype)
                case [follower_orders.SAVE, step, extra]:
                    older = map(Version, map(int, extra.get(DIGESTS, ())))
                    checkpoints.save(step, state, extra, versions.trees(older, shardings))
                case [follower_orders.AGAIN]:
                    again = True
                case _:
                    raise LeaderLost(
                        f"process 0 said {order[0]!r}, which is no order", exits.BROKEN
                    )
        return again

    def sees(self, proof: Path) -> None:
        """Check that both use one workdir. Raises OtherFolder if process 0's mark is not in it."""
        if not proof.exists():
            raise OtherFolder(
                f"{proof.parent} on {socket.gethostname()} is not the folder of process 0; give "
                "all processes one --workdir on a file system that they share"
            )
        self._channel.send(True)

    def _next(self) -> list[Any] | None:
        """Wait for the next order; None when the run is over."""
        try:
            with PULSE.phase(ORDERS):
                order: list[Any] = self._channel.receive()
            PULSE.now(order[0])
            return order
        except PeerGone as error:
            loss = self.watches[0].verdict()
            if loss is None:
                return None
            raise loss from error

    def _write(self, name: str, shares: Params, dtype: str) -> None:
        """Write this process's share and report the outcome to process 0; a thread's work."""
        place = beside(self._snapshots / name)
        try:
            files = write_shares(place, shares, dtype=dtype, describe=False)
            answer = [name, files, ""]
        except Exception as error:  # whatever it is, it is process 0's to say
            answer = [name, [], str(error) or type(error).__name__]
        with contextlib.suppress(PeerGone):
            self._shares.send(answer)


def _lost(reason: str, code: int) -> LeaderLost:
    return LeaderLost(f"process 0 {reason}", code)


def accept(world: ProcessGroup, workdir: Path, tell: Tell = tell_all) -> Leader:
    """Dial process 0, which calls `invite` now.

    Raises:
        OtherFolder: checkpoints and versions of all processes go to one folder.
        LeaderLost: it is not there.
    """
    word = tell(None)
    tls, channels = tls_of(Key(**word["key"]), listens=False), {}
    try:
        for purpose in PURPOSES:
            address = (word["host"], word["port"])
            channels[purpose] = dial(address, tls, [purpose, world.index], float(JOIN_SECONDS))
    except OSError as error:
        where = f"{word['host']}:{word['port']}"
        raise LeaderLost(f"process 0 is not at {where}: {error}", exits.BROKEN) from error
    with contextlib.ExitStack() as stack:
        leader = stack.enter_context(Leader(world, workdir, **channels))
        leader.sees(workdir / word["proof"])
        stack.pop_all()
    return leader


def follow_training(
    run: RunConfig,
    path: str | Path,
    world: ProcessGroup,
    *,
    make_programs: Callable[..., Any] = programs,
) -> None:
    """Run the part of a process other than 0 in `run_training`, until that is over.

    Args:
        make_programs: a test gives another.

    Raises:
        LeaderLost: process 0 ended before that.
        OtherFolder: `path` is not process 0's.
        WorkdirUnusable: functions of other packages are not those of process 0.
    """
    compile_cache.enable(run.compile_cache_dir)
    add_in_order(run.deterministic)
    show_compiles()
    while _follow_session(run, Path(path), world, make_programs):
        pass


def _follow_session(
    run: RunConfig, path: Path, world: ProcessGroup, make_programs: Callable[..., Any]
) -> bool:
    """Follow one session to its end; return whether another follows, with changed settings."""
    run = agreed(run, world)
    mesh = make_mesh(run.learner.mesh)
    check_mesh(mesh, world)
    kernels.check(run, mesh)
    policy, critic = make_programs(run, mesh)
    with (
        accept(world, path) as leader,
        StacksFile(stacks_path(path, world.index)),
        Checkpoints(
            path / "checkpoints",
            keep=run.checkpoint.keep,
            keep_every=run.checkpoint.keep_every,
            disk_seconds=run.checkpoint.disk_seconds,
        ) as checkpoints,
    ):
        check_code(path, run)
        restored = restore(run, policy, critic, checkpoints, world, lambda line: None)
        first = checkpoints.latest() or 0
        changes, begins = settled((), first, 0, world)
        before, run = run, settings_at(run, changes, first)
        policy, critic = make_programs(run, make_mesh(run.learner.mesh))
        if restored and lies_elsewhere(before, run):
            restored = None  # room for what is read
            restored = restore(run, policy, critic, checkpoints, world, lambda line: None)
        ready = prepared(
            *(run, path, policy, critic, checkpoints, restored, _Silence()), begins=begins
        )
        extra = restored[1] if restored else {}
        versions = restored_versions(checkpoints, first, extra, ready.state.params, run)
        stop_ids, stop_strings = ends_of(run)
        learner = learner_of(
            run,
            policy=ready.policy,
            critic=ready.critic,
            reference=ready.reference,
            teachers=ready.teachers,
            stop_ids=stop_ids,
            stops=stop_strings.table,
        )
        return leader.obey(learner, ready.state, checkpoints, versions)
