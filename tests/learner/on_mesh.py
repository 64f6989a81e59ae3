"""What `test_on_mesh.py` runs in a process with eight simulated devices: measures, asserts nothing.

Prints one JSON object.
"""

import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from configs import base
from rlboost_jax.engine.engine_parameters import EngineParameters
from rlboost_jax.learner.checkpoints.writing import Checkpoints
from rlboost_jax.learner.fleet.reserved import devices_of_slices
from rlboost_jax.learner.packing import PackedBatch
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.state import abstract_state, init_state
from rlboost_jax.learner.update.tree_sum import TreeSum
from rlboost_jax.models.adapters import base_model, joined, trained_part
from rlboost_jax.models.parameter_sharding import make_mesh, param_shardings
from rlboost_jax.models.params import abstract_params, init_params, unstack_layers
from rlboost_jax.settings.config_loading import run_config
from rlboost_jax.settings.memory_estimates import ATTENTION_BLOCKS
from rlboost_jax.settings.model_config import LoraConfig

ROWS, ROW_TOKENS, NUM_BATCHES = 4, 24, 4
NUM_TOKENS = ROWS * ROW_TOKENS * NUM_BATCHES
ALONE, SPREAD, OTHER = (1, 1, 1), (2, 2, 2), (1, 4, 2)


def small_run(**learner):
    values = base.get_config()
    values.model.embed_dim, values.model.hidden_dim, values.model.head_dim = 16, 32, 8
    values.model.num_layers = 1
    run = run_config(values)
    return replace(run, learner=replace(run.learner, **learner))


def random_batches(num_batches=NUM_BATCHES):
    rng = np.random.default_rng(0)
    shape = (ROWS, ROW_TOKENS)

    def batch():
        return PackedBatch(
            tokens=rng.integers(112, size=shape, dtype=np.int32),
            positions=np.tile(np.arange(24, dtype=np.int32) % 12, (4, 1)),
            segments=np.tile(np.arange(24, dtype=np.int32) // 12 + 1, (4, 1)),
            targets=rng.integers(112, size=shape, dtype=np.int32),
            response_mask=np.ones(shape, bool),
            behaviour_logprobs=rng.normal(-4.7, 0.1, size=shape).astype(np.float32),
            advantages=rng.normal(size=shape).astype(np.float32),
            weights=np.ones(shape, np.float32),
        )

    return [batch() for _ in range(num_batches)]


class Trainer:
    def __init__(self, shape, rank=0, **learner):
        """A small learner on a mesh of that shape.

        Args:
            rank: of adapters that add something.
        """
        self.run = small_run(**learner)
        self.run = replace(self.run, model=replace(self.run.model, lora=LoraConfig(rank=rank)))
        self.step = PolicyPrograms(
            self.run.model,
            self.run.learner,
            self.run.algorithm,
            self.run.sampling,
            num_updates=10,
            mesh=make_mesh(shape),
        )
        params = init_params(self.run.model, 0)
        if rank:
            base = base_model(self.run.model)
            places = param_shardings(base, self.step.mesh)
            self.step = self.step.over(init_params(base, 0, shardings=places))
            params = jax.tree.map(lambda leaf: leaf + 0.02, trained_part(self.run.model, params))
        self.state = init_state(params, self.step.optimizer, self.step.shardings)

    def gradients(self, batches, num_micro_batches=1):
        size = len(batches) // num_micro_batches
        total = TreeSum(num_micro_batches, self.step.combine)
        for index in range(num_micro_batches):
            part = batches[index * size : (index + 1) * size]
            total.add(index, self.step.accumulate(self.state.params, None, part))
        return total.total()[0]

    def update(self, batches):
        gradients = self.gradients(batches)
        self.state, _ = self.step.apply(self.state, gradients, np.float32(NUM_TOKENS))
        return self.state

    def abstract(self):
        return abstract_state(
            self.run.model,
            self.step.optimizer,
            self.step.mesh,
            moment_memory=self.run.learner.moment_memory,
        )


def on_host(tree):
    return jax.tree.map(lambda leaf: np.array(leaf).astype(np.float64), tree)


def gap(left, right):
    """The largest difference of two trees."""
    differences = jax.tree.map(lambda a, b: np.abs(a - b).max(), on_host(left), on_host(right))
    return float(max(jax.tree.leaves(differences)))


def bytes_per_device(tree):
    """By device; and how many there would be on one that held everything."""
    held: dict[int, int] = {}
    for leaf in jax.tree.leaves(tree):
        for shard in leaf.addressable_shards:
            held[shard.device.id] = held.get(shard.device.id, 0) + shard.data.nbytes
    return sorted(held.values()), sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def memory_kinds(tree):
    return sorted({leaf.sharding.memory_kind for leaf in jax.tree.leaves(tree)})


def engine_takes(trainer):
    """Whether an engine gets from all devices what it gets from the host, on its own device."""
    taken, params = [], joined(trainer.step.base, trainer.state.params)
    device, model = jax.devices()[5], trainer.run.model
    shapes = jax.eval_shape(unstack_layers, abstract_params(base_model(model)))
    places = jax.tree.map(lambda _: device, shapes)
    for given in (params, jax.device_get(params)):
        engine = EngineParameters(model, places, "bfloat16")
        engine.load(given, 0)
        taken.append(engine.leaves)
        assert all(leaf.devices() == {device} for leaf in engine.leaves)
    return all(np.array_equal(a, b) for a, b in zip(*taken, strict=True))


def measure():
    batches = random_batches()
    alone, spread, other = Trainer(ALONE), Trainer(SPREAD), Trainer(OTHER, remat="full")
    ATTENTION_BLOCKS["cpu"] = 8  # three of a row
    hosted = Trainer(OTHER, moment_memory="host", remat="full", attention="chunked")

    def mean(trainer, num_micro_batches=1):
        gradients = trainer.gradients(batches, num_micro_batches)
        return jax.tree.map(lambda leaf: leaf / NUM_TOKENS, gradients)

    expected = mean(alone)
    yield "largest gradient", max(float(np.abs(x).max()) for x in jax.tree.leaves(expected))
    yield (
        "gradient gaps",
        {
            "4 micro-batches": gap(mean(alone, 4), expected),
            "8 devices": gap(mean(spread), expected),
            "8 devices, 4 micro-batches": gap(mean(spread, 4), expected),
            "8 devices, recomputed": gap(mean(other), expected),
            "8 devices, recomputed in chunks": gap(mean(hosted), expected),
        },
    )
    update = other.step.apply.lower(other.state, other.state.params, np.float32(1)).compile()
    yield "an update gathers", "all-gather" in update.as_text()

    for name, trainer in {SPREAD: spread, OTHER: other}.items():
        trainer.update(batches)
        yield f"bytes of params on {name}", bytes_per_device(trainer.state.params)
        yield f"bytes of moments on {name}", bytes_per_device(trainer.state.opt_state)

    with tempfile.TemporaryDirectory() as folder, Checkpoints(Path(folder), keep=1) as kept:
        kept.save(1, spread.state, {})
        kept.wait()
        saved = on_host(spread.state)
        made = []
        jax.monitoring.register_event_duration_secs_listener(
            lambda event, *_, **__: made.append(event) if "jaxpr_to_mlir" in event else None
        )
        after = on_host(spread.update(batches))
        yield "programs made by a second update", len(made)
        for name, trainer in {ALONE: alone, OTHER: other, "the host": hosted}.items():
            trainer.state, _ = kept.restore(1, trainer.abstract())
            yield f"restored on {name}", gap(trainer.state, saved)
            yield f"resumed on {name}", gap(trainer.update(batches), after)
    slices = devices_of_slices(spread.step.mesh, 2)
    yield "devices of slices", [[device.id for device in devices] for devices in slices]
    yield "an engine's parameters are equal", engine_takes(spread)
    adapters = Trainer(SPREAD, rank=4)
    yield "bytes of adapters", bytes_per_device(adapters.state.params)
    yield "bytes of their base", bytes_per_device(adapters.step.base)
    yield "adapters' gradient gap", gap(mean(adapters), mean(Trainer(ALONE, rank=4)))
    yield "an engine's merged parameters are equal", engine_takes(adapters)
    yield "moments on the host", memory_kinds(hosted.state.opt_state[1][0].mu)
    yield "parameters beside them", memory_kinds(hosted.state.params)


def main():
    json.dump(dict(measure()), sys.stdout)
