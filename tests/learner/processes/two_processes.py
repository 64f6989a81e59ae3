"""What `test_two_processes.py` runs in two processes, each with two devices.

    python -m tests.learner.processes.two_processes INDEX PORT FOLDER

Process 0 prints one JSON object and hangs up without a word, with process 1 waiting for orders. It
stays until process 1 has seen that: JAX's own runtime aborts the others within milliseconds of the
death of process 0, and which of the two is first would be chance.
"""

import json
import os
import shutil
import sys
import time
import traceback
from copy import copy
from dataclasses import replace
from pathlib import Path

import jax
import msgspec
import numpy as np

from rlboost_jax.engine.engine_parameters import EngineParameters
from rlboost_jax.learner.checkpoints.fallback import newest_sound
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.episodes.trajectory import Group, Trajectory
from rlboost_jax.learner.kept_versions import DIGESTS, KeptVersions
from rlboost_jax.learner.processes import peer_watch
from rlboost_jax.learner.processes.digest import shared_digest
from rlboost_jax.learner.processes.follower import accept
from rlboost_jax.learner.processes.leader import Followers, invite
from rlboost_jax.learner.processes.peer_watch import PeerEnded
from rlboost_jax.learner.processes.process_group import ProcessGroup, agreed, check_mesh, join
from rlboost_jax.learner.programs.teachers import opened_teachers
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.messages import Manifest
from rlboost_jax.models.checkpoint_writer import write_checkpoint
from rlboost_jax.models.params import (
    abstract_params,
    flatten_params,
    init_params,
    params_digest,
    unstack_layers,
)
from rlboost_jax.platform import at_rest
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.distillation_config import DistillationConfig, TeacherConfig
from rlboost_jax.settings.huggingface.config import to_huggingface
from rlboost_jax.weights.delta_packs import promised, read_pack
from rlboost_jax.weights.leaf_arrays import open_params
from rlboost_jax.weights.piece_lists import listed
from rlboost_jax.weights.snapshots import BASE, FOLDER, SnapshotStore
from tests.learner.on_mesh import (
    ALONE,
    Trainer,
    bytes_per_device,
    gap,
    random_batches,
    small_run,
)
from tests.patience import PATIENCE_SECONDS
from tests.weights.reading import read_params

MESH = (1, 2, 2)
SEEN = "seen"  # a file: that process 0 has hung up


def response(sample: int, logprobs: list[float]) -> Trajectory:
    """Response of a policy close to uniform over 112 tokens."""
    return Trajectory(
        prompt=0,
        sample=sample,
        sequence=Sequence.of_response([1, 2], [3, 4, 5], logprobs, version=0),
        advantage=0.0,
    )


class Reader:
    """Copies from devices to memory, and counts what it has copied."""

    def __init__(self):
        self.num_bytes = 0

    def __call__(self, array):
        self.num_bytes += array.nbytes
        return np.asarray(array)


def measure(world: ProcessGroup, folder: Path):
    own = small_run(attention="chunked", experts="blocks") if world.leads else small_run()
    chosen = agreed(own, world).learner
    (folder / f"chosen-{world.index}").write_text(f"{chosen.attention} {chosen.experts}")
    batches = random_batches()
    trainer = Trainer(MESH, pack_rows=2, tolerated_gap=1.0, tolerated_choice_gap=1.0)
    check_mesh(trainer.step.mesh, world)
    state = trainer.update(batches)
    yield "bytes of params", bytes_per_device(state.params)
    yield "bytes of moments", bytes_per_device(state.opt_state)
    reader = Reader()
    connected = invite(world, folder) if world.leads else accept(world, folder)
    with Checkpoints(folder / "checkpoints", keep=2) as kept:
        kept.save(1, state, {"window": None})
        kept.wait()
        state = trainer.update(batches)
        kept.save(2, state, {"window": None})
    yield "went back", went_back(folder, trainer, world)
    yield "digests of what one process saved", digests_read(folder / "alone", trainer, world)
    trainer.step.heldout_gaps = trainer.step.gaps  # sampled in the same way
    learner = learner_of(trainer.run, policy=trainer.step, critic=None, reference=None, stop_ids=())
    yield "what a teacher says", taught(folder / f"teacher-{world.index}", trainer.step.mesh)
    with_versions = Checkpoints(folder / "with_versions", keep=1)
    if not world.leads:
        policy = copy(learner.policy)
        policy.base = state.params
        connected.obey(replace(learner, policy=policy), state, with_versions, KeptVersions())
        raise AssertionError("process 0 never says that it is over")
    yield "doubts", doubts(connected, 2, BatchUpdate(learner, state, step=2, checkpoint=int))
    connected._read = reader
    yield from published(connected, state.params, folder, trainer.run)
    yield "bytes that process 0 has copied", reader.num_bytes
    yield from kept_version(connected, learner, state, with_versions)
    alone = Trainer(ALONE)
    alone.update(batches)
    yield "gap", gap(read_back(folder, 2), alone.update(batches).params)
    for channel in (each for channels in connected.channels.values() for each in channels):
        channel.close()


def taught(folder: Path, mesh):
    """Advantages by which two responses are distilled, from a checkpoint that is written there."""
    run = small_run()
    folder.mkdir()
    write_checkpoint(run.model, init_params(run.model, 1), folder, dtype="float32")
    (folder / "config.json").write_text(json.dumps(to_huggingface(run.model)))
    distillation = DistillationConfig(teachers=(TeacherConfig(source=str(folder)),))
    teachers = opened_teachers(replace(run, distillation=distillation), mesh)
    members, _ = teachers.taught([response(0, [-4.7] * 3), response(1, [-4.7, -0.1, -4.7])])
    return [each.advantages.tolist() for each in members]


def doubts(connected: Followers, step: int, update: BatchUpdate):
    """Doubts about an honest response of version 2, and one with a lie, trained on or measured."""
    connected.begin(step, 2)
    checks = connected.checking(update.check), connected.checking_heldout(update.check_heldout)
    honest, lie = response(0, [-4.7] * 3), response(1, [-4.7, -0.1, -4.7])
    found_in = [
        check((Group(prompt=0, trajectories=(honest, other)),))
        for check in checks
        for other in (honest, lie)
    ]
    return [[(doubt.sample, doubt.position) for doubt in found] for found in found_in]


def kept_version(connected: Followers, learner, state, checkpoints: Checkpoints):
    """Version 2 after it is the newest, as each process keeps it."""
    shardings, versions = learner.policy.shardings.params, KeptVersions()
    connected.keep(2, "two", [])
    versions.keep(2, state.params, "two", dtype=learner.run.weights.rollout_dtype)
    yield "bytes of a kept version", num_bytes(versions.params(2))
    sampler = versions.sampler(2, 3, shardings)
    update = BatchUpdate(learner, state, step=3, checkpoint=int, version=2, sampler=sampler)
    yield "doubts about an older version", doubts(connected, 3, update)
    extra = {DIGESTS: versions.digests([2])}
    connected.save(3, extra)
    checkpoints.save(3, state, extra, versions.trees([2], shardings))
    checkpoints.wait()
    connected.write("2")  # of what is kept
    yield "files of its share", len(connected.written("2"))


def went_back(folder: Path, trainer: Trainer, world: ProcessGroup):
    """What both go on from where process 1 alone reads what is broken of checkpoint 2."""
    copy, notes = folder / "flipped", []
    if world.leads:
        shutil.copytree(folder / "checkpoints", copy, dirs_exist_ok=True)
        files = at_rest.described(copy / "2")["files"]
        of_process_1 = copy / "2" / sorted(files, key=lambda name: (-files[name][0], name))[1]
        data = bytearray(of_process_1.read_bytes())
        data[len(data) // 2] ^= 4
        of_process_1.write_bytes(data)
    with Checkpoints(copy, keep=2) as kept:
        state, _ = newest_sound(kept, trainer.abstract(), world, notes.append)
        return [int(state.step), kept.complete(), notes]


def trees_of(state):
    """Parameters and moments."""
    adam = state.opt_state[1][0]
    return state.params, adam.mu, adam.nu


def digests_read(folder: Path, trainer: Trainer, world: ProcessGroup):
    with Checkpoints(folder, keep=1) as kept:
        state, _ = newest_sound(kept, trainer.abstract(), world, print)
    return [shared_digest(tree, world, base="") for tree in trees_of(state)]


def published(connected: Followers, params, folder: Path, run):
    """Versions 1 and 2 and a base, of the same parameters."""
    place, dtype, others = folder / FOLDER, run.weights.rollout_dtype, connected.written
    store = SnapshotStore(place, dtype=dtype, keep=1, deltas=(1,), others=others)
    connected.write("1")
    mine = connected.host_copy(params)
    store.write(1, mine, "")
    connected.write("2")
    yield "digest", connected.digest(params, mine, "2", base="")
    yield "digest on a base", connected.digest(params, mine, BASE, base="base")
    manifest = store.write(2, mine, "")
    (folder / "manifest").write_bytes(msgspec.msgpack.encode(manifest))
    yield "bytes of its share", num_bytes(mine)
    yield "files", sorted(entry.path for entry in listed(manifest).files)
    store.make_packs(manifest)
    [pack] = promised(Path(manifest.directory))
    yield "deltas", sorted(read_pack(pack.read_bytes()))
    whole = read_params(Path(manifest.directory), listed(manifest))
    yield "digest of what was written", params_digest(whole)
    yield "an engine's parameters are equal", engine_takes(run, folder, manifest, whole)
    (folder / FOLDER / "3.partial").write_text("a file where a folder should be made")
    connected.write("3")
    try:
        connected.written("3")
    except OSError as error:
        yield "fault", str(error)


def num_bytes(shares):
    parts = (leaf.parts.values() for leaf in flatten_params(shares).values())
    return sum(part.nbytes for of_leaf in parts for part in of_leaf)


def read_back(folder: Path, version: int):
    manifest = msgspec.msgpack.decode((folder / "manifest").read_bytes(), type=Manifest)
    return read_params(folder / FOLDER / str(version), listed(manifest))


def engine_takes(run, folder: Path, manifest: Manifest, whole) -> bool:
    """Whether an engine gets from disk what it gets from memory."""
    shapes = jax.eval_shape(unstack_layers, abstract_params(run.model))
    places = jax.tree.map(lambda _: jax.local_devices()[1], shapes)
    taken = []
    for given in (open_params(Path(manifest.directory), listed(manifest)), whole):
        engine = EngineParameters(run.model, places, run.weights.rollout_dtype)
        engine.load(given, 2)
        taken.append(engine.leaves)
    return all(np.array_equal(a, b) for a, b in zip(*taken, strict=True))


def main(index: int, port: int, folder: Path) -> None:
    world = join(f"127.0.0.1:{port}", 2, index)
    measured = dict(measure(world, folder))
    print(json.dumps(measured), flush=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (folder / SEEN).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    os._exit(9)


if __name__ == "__main__":
    peer_watch.GRACE_SECONDS = PATIENCE_SECONDS
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except PeerEnded as error:
        print(type(error).__name__, error, flush=True)
        (Path(sys.argv[3]) / SEEN).touch()
        os._exit(1)
    except BaseException:
        traceback.print_exc()
        os._exit(3)  # without waiting for the other
