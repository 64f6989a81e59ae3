"""What `test_processes.py` runs in two processes, each with one device.

    python -m tests.learner.two_processes INDEX PORT FOLDER

Process 0 prints one JSON object and then dies without a word, with process 1 waiting for orders.
"""

import json
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np

from rlboost_jax.learner import orders
from rlboost_jax.learner.checkpoints import Checkpoints
from rlboost_jax.learner.followers import invite
from rlboost_jax.learner.following import accept
from rlboost_jax.learner.processes import World, agreed, check_mesh, join
from rlboost_jax.learner.trajectory import Group, Trajectory
from rlboost_jax.learner.update.learner import learner_of
from rlboost_jax.models.params import params_digest
from rlboost_jax.settings.load import write_run_config
from rlboost_jax.weights.snapshots import SnapshotStore
from tests.learner.on_mesh import (
    ALONE,
    Trainer,
    bytes_per_device,
    gap,
    random_batches,
    small_run,
)

MESH = (1, 2, 1)


def response(sample: int, logprobs: list[float]) -> Trajectory:
    """Of a policy close to uniform over 112 tokens."""
    return Trajectory(
        prompt=0,
        sample=sample,
        prompt_tokens=np.array([1, 2], np.int32),
        response_tokens=np.array([3, 4, 5], np.int32),
        behaviour_logprobs=np.array(logprobs, np.float32),
        policy_versions=np.zeros(3, np.int32),
        reward=0.0,
        advantage=0.0,
    )


def measure(world: World, folder: Path):
    own = small_run(attention="chunked", experts="blocks") if world.leads else small_run()
    chosen = agreed(own, world).learner
    (folder / f"chosen-{world.index}").write_text(f"{chosen.attention} {chosen.experts}")
    batches = random_batches()
    trainer = Trainer(MESH, pack_rows=2, tolerated_gap=1.0)
    check_mesh(trainer.step.mesh, world)
    state = trainer.update(batches)
    yield "bytes of params", bytes_per_device(state.params)
    yield "bytes of moments", bytes_per_device(state.opt_state)
    connected = invite(world, "a run") if world.leads else accept(world, folder)
    with Checkpoints(folder / "checkpoints", keep=1) as kept:
        if world.leads:  # which saves alone, between saves of all
            store = SnapshotStore(folder / "snapshots", dtype="float32", keep=1)
            store.write(0, {"w": np.ones(3, np.float32)}, "digest")
        kept.save(1, state, {"window": None})
        kept.wait()
        if world.leads:
            store.write(1, {"w": np.ones(3, np.float32)}, "digest")
        state = trainer.update(batches)
        kept.save(2, state, {"window": None})
    learners = learner_of(
        trainer.run, policy=trainer.step, critic=None, reference=None, stop_ids=()
    )
    if not world.leads:
        told = SimpleNamespace(policy=SimpleNamespace(base=state.params), check=learners.check)
        connected.obey(told, state, None)
        raise AssertionError("process 0 never says that it is over")
    check = connected.checking(partial(learners.check, state))
    honest, lie = response(0, [-4.7] * 3), response(1, [-4.7, -0.1, -4.7])
    told = [check((Group(prompt=0, trajectories=(honest, other)),)) for other in (honest, lie)]
    yield "doubts", [[(doubt.sample, doubt.position) for doubt in doubts] for doubts in told]
    gathered = connected.gather(state.params)
    yield "digest", params_digest(gathered)
    yield "digest of a base", params_digest(connected.gather(state.params, orders.BASE))
    alone = Trainer(ALONE)
    alone.update(batches)
    yield "gap", gap(gathered, alone.update(batches).params)


def main(index: int, port: int, folder: Path) -> None:
    world = join(f"127.0.0.1:{port}", 2, index)
    if world.leads:
        write_run_config(folder / "config.json", small_run(), "a run")
    multihost = jax.experimental.multihost_utils
    multihost.sync_global_devices("the folder is there")
    measured = dict(measure(world, folder))
    print(json.dumps(measured), flush=True)
    os._exit(9)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except RuntimeError as error:
        print(type(error).__name__, error, flush=True)
        os._exit(1)
