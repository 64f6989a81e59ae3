"""What `test_changed_mesh.py` runs in a process with four simulated devices: measures, asserts
nothing.

Prints one JSON object in its last line.
"""

import dataclasses
import itertools
import json
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import numpy as np

from configs import base
from rlboost_jax.engine.device_memory import NotEnoughMemory
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.processes.process_group import ALONE
from rlboost_jax.learner.setup.makers import lost_layout
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.state import abstract_state
from rlboost_jax.models.parameter_sharding import make_mesh, param_shardings
from rlboost_jax.models.params import init_params, params_digest
from rlboost_jax.observe.metrics import read_metrics
from rlboost_jax.settings.changes import Change
from rlboost_jax.settings.config_loading import read_changes, run_config
from rlboost_jax.settings.model_config import LoraConfig
from tests.learner.doubles import MAKERS, finished, train
from tests.learner.test_changed_settings import Noting, spoil

# On the last some axes of arrays stay whole.
A, B = (1, 4, 1), (2, 1, 2)
MESHES = (A, (1, 1, 1), B, (1, 1, 3))


def small_run(**settings):
    values = base.get_config()
    values.model.embed_dim, values.model.hidden_dim, values.model.head_dim = 16, 32, 8
    values.model.num_layers, values.warmup.max_updates, values.num_steps = 1, 0, 2
    values.checkpoint.keep, values.observe.live, values.observe.trackers = 9, False, ()
    run = run_config(values)
    return dataclasses.replace(run, **settings)


def laid_out(run, mesh, num_steps=None, **learner):
    learner = dataclasses.replace(run.learner, mesh=mesh, **learner)
    return dataclasses.replace(run, learner=learner, num_steps=num_steps or run.num_steps)


def abstract(run):
    """What a checkpoint of a run is restored onto, a critic included."""
    mesh = make_mesh(run.learner.mesh)
    policy, critic = programs(run, mesh)
    state = abstract_state(
        run.model, policy.optimizer, mesh, moment_memory=run.learner.moment_memory
    )
    return dataclasses.replace(state, critic=critic.abstract() if critic else None)


def any_bits(place):
    """The same numbers of every kind for a leaf of the same shape, denormal and NaN included."""
    rng = np.random.default_rng(np.prod(place.shape, dtype=int))
    return np.frombuffer(rng.bytes(place.size * place.dtype.itemsize), place.dtype).reshape(
        place.shape
    )


def kinds():
    """Runs whose checkpoints hold other trees."""
    plain = small_run()
    model = dataclasses.replace(plain.model, lora=LoraConfig(rank=4))
    yield "adapters", dataclasses.replace(plain, model=model)
    algorithm = dataclasses.replace(plain.algorithm, advantage="gae")
    learner = dataclasses.replace(plain.learner, moment_dtype="bfloat16")
    yield (
        "a critic and rounded moments",
        dataclasses.replace(plain, algorithm=algorithm, learner=learner),
    )
    model = dataclasses.replace(plain.model, num_experts=4, experts_per_token=2, expert_dim=16)
    yield "experts", dataclasses.replace(plain, model=model)


def leaves_that_differ(run, folder):
    """How many leaves there are, and which were read otherwise than they were written, in NumPy:
    each mesh reads what the one before it has saved."""
    differ, written = [], jax.tree.map(any_bits, abstract(laid_out(run, A)))
    named = jax.tree_util.tree_leaves_with_path(written)
    for step, (before, after) in enumerate(itertools.pairwise((*MESHES, A)), start=1):
        places = [abstract(laid_out(run, mesh)) for mesh in (before, after)]
        with Checkpoints(folder, keep=2) as kept:
            if step == 1:
                kept.save(0, jax.tree.map(put, written, places[0]), {})
                kept.wait()
            state = kept.restore(step - 1, places[1])[0]
            for (path, wanted), leaf, place in zip(
                named, jax.tree.leaves(state), jax.tree.leaves(places[1]), strict=True
            ):
                if (
                    np.asarray(leaf).tobytes() != wanted.tobytes()
                    or leaf.sharding != place.sharding
                ):
                    differ.append(f"{jax.tree_util.keystr(path)} on {after}")
            kept.save(step, state, {})
    return [len(named), differ]


def put(leaf, place):
    return jax.device_put(leaf, place.sharding)


class Meshed(Noting):
    """Notes the mesh of each step in place of its rewards."""

    def step(self, step):
        devices = {leaf.sharding.mesh.shape_tuple for leaf in jax.tree.leaves(self.state.params)}
        ((_, data), (_, fsdp), (_, tensor)) = devices.pop()
        assert self.run.learner.mesh == (data, fsdp, tensor) and not devices
        mesh = 100 * data + 10 * fsdp + tensor
        noted = super().step(step)
        return finished(step, rewards=[float(mesh)] * 2, params_digest=noted.params_digest)


class Dying(Meshed):
    def step(self, step):
        raise RuntimeError("killed")


def seen(workdir):
    changes = [[each.step, each.name, each.before, each.value] for each in read_changes(workdir)]
    rows = read_metrics(workdir)
    return {
        "changes": [each for each in changes if each[1] != "num_steps"],
        "meshes": [int(row["reward_mean"]) for row in rows],
        "digests": [row["params_digest"] for row in rows],
    }


def noting(lines):
    class Console(MAKERS.console):
        def note(self, line):
            lines.append(line)

    return Console


def without(mesh):
    """Make a check by which a mesh does not fit the devices any more."""

    def fits(run, devices, say):
        if run.learner.mesh == mesh:
            raise NotEnoughMemory(f"no room for {mesh}")

    return fits


def runs(folder):
    run = small_run()
    train(laid_out(run, A, 6), folder / "whole", Meshed)
    yield "whole", seen(folder / "whole")

    changed, lines = folder / "changed", []
    for mesh, num_steps in ((A, 2), (B, 4), (A, 6)):
        train(laid_out(run, mesh, num_steps), changed, Meshed, console=noting(lines))
    yield "there and back", seen(changed)
    yield "lines", [line for line in lines if "mesh" in line or "bits" in line]

    for step in (3, 4, 5, 6):
        spoil(changed, step)
    (changed / "summary.json").unlink()
    shutil.copytree(changed, folder / "shrunk")
    train(laid_out(run, A, 6), changed, Meshed)
    yield "after a fallback", seen(changed)

    lines.clear()
    now = laid_out(run, A, 6)
    train(now, folder / "shrunk", Meshed, console=noting(lines), fits=without(B))
    yield "after a fallback without the devices of then", seen(folder / "shrunk")
    yield "its lines", [line for line in lines if "again" in line]

    died = folder / "died"
    train(laid_out(run, A, 2), died, Meshed)
    for name, mesh in (("with the other mesh", A), ("with the same mesh", B)):
        try:
            train(laid_out(run, B, 4), died, Dying)
        except RuntimeError as error:
            yield f"{name}, dead", [str(error), seen(died)["changes"]]
        place = folder / name
        shutil.copytree(died, place)
        train(laid_out(run, mesh, 4), place, Meshed)
        yield name, seen(place)


def measure():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for kind, run in kinds():
            yield kind, leaves_that_differ(run, folder / kind)
        yield from runs(folder)
    model = small_run().model
    yield (
        "digests of fresh parameters",
        [
            params_digest(init_params(model, 0, shardings=param_shardings(model, make_mesh(mesh))))
            for mesh in MESHES
        ],
    )
    gone = [Change(step=4, name="learner.mesh", before=(1, 8, 1), value=A)]
    yield "eight devices", lost_layout(laid_out(small_run(), A), gone, 2, ALONE, MAKERS)


def main():
    json.dump(dict(measure()), sys.stdout)
