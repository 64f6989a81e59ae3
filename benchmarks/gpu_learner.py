"""Stages of gpu.py that train: gradients, and what moves between a device and its host."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.gpu_figures import Cases, Figure, figure, seconds_of, sheet
from benchmarks.gpu_inputs import filled
from benchmarks.gpu_programs import learner_program, measured, run_here, seconds_of_program
from benchmarks.h100.names import gradients_name
from rlboost_jax.learner.setup.preparation import programs
from rlboost_jax.learner.state import HOST_MEMORY, abstract_state
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import abstract_params, flatten_params
from rlboost_jax.settings.run_config import RunConfig

_SMALL, _LARGE = "qwen3_06b_gsm8k", "qwen3_8b_openr1"
_LINK = 64e9  # bytes per second and direction of PCIe 5.0 with 16 lanes: its data sheet


def gradients(*, tiny: bool) -> Cases:
    """Time the gradients of one packed batch whose rows are one sequence each."""
    part = partial(_gradients, tiny=tiny)
    few = partial(part, _LARGE, layers=4)
    return {
        "Qwen3-0.6B, 4 x 2,048": partial(part, _SMALL, 4, 2048),
        "Qwen3-0.6B, 4 x 2,048, products timed by XLA": partial(part, _SMALL, 4, 2048, tuned=True),
        "Qwen3-8B of 4 layers, 1 x 14,848": partial(few, 1, 14_848),
        "Qwen3-8B of 4 layers, 4 x 3,712": partial(few, 4, 3712),
        "Qwen3-8B, adapters, 1 x 14,848": partial(part, _LARGE, 1, 14_848, adapters=True),
    }


def transfers(*, tiny: bool) -> Cases:
    """Weights of 8B over PCIe, and an update whose moments lie in the host's memory."""
    apply = partial(_apply, tiny=tiny)
    return {
        "weights of 8B, host to device": partial(_moved, tiny=tiny, pinned=False),
        "weights of 8B, page-locked memory to device": partial(_moved, tiny=tiny, pinned=True),
        "update of 8B of 4 layers, moments on the device": partial(apply, memory="device"),
        "update of 8B of 4 layers, moments in page-locked memory": partial(apply, memory="host"),
    }


def _gradients(
    name: str,
    rows: int,
    tokens: int,
    *,
    tiny: bool,
    tuned: bool = False,
    layers: int = 0,
    adapters: bool = False,
) -> Figure:
    run = run_here(name, tiny=tiny, layers=layers)
    if tiny:
        rows, tokens = run.learner.pack_rows, run.learner.row_tokens
    elif name == _SMALL:
        run = replace(run, learner=replace(run.learner, pack_tokens=0, pack_rows=rows))
    if adapters:
        run = replace(run, model=replace(run.model, lora=replace(run.model.lora, rank=32)))
    program = learner_program(run, gradients_name(rows, tokens))
    found = measured(run, "learner", program, tuned=tuned)
    if here := sheet():
        each = program.work.flops / here.flops_per_second
        found["mfu"] = 1e3 * each / found["value"]
    return found


def _moved(*, tiny: bool, pinned: bool) -> Figure:
    """Leaf after leaf, as an engine loads them, each awaited at the end of all."""
    run = run_here(_LARGE, tiny=tiny)
    shapes = flatten_params(abstract_params(run.model)).values()
    arrays: list[Any] = [np.ones(leaf.shape, jnp.bfloat16) for leaf in shapes]
    device = jax.devices()[0]
    place = jax.sharding.SingleDeviceSharding(device)
    if pinned:
        kept = place.with_memory_kind(HOST_MEMORY)
        arrays = jax.block_until_ready([jax.device_put(array, kept) for array in arrays])
    size = sum(array.nbytes for array in arrays)
    seconds = seconds_of(partial(jax.device_put, arrays, place), rounds=1 if tiny else 2)
    bound = _LINK / 1e9 if sheet() else None
    return figure(size / seconds / 1e9, "GB/s", bound=bound, gigabytes=size / 1e9)


def _apply(*, tiny: bool, memory: Any) -> Figure:
    run = run_here(_LARGE, tiny=tiny, layers=4)
    run = replace(run, learner=replace(run.learner, moment_memory=memory))
    compiled, arguments = update_of(run)
    return figure(1e3 * seconds_of_program(compiled, arguments, rounds=1 if tiny else 3), "ms")


def update_of(run: RunConfig) -> tuple[Any, tuple[Any, ...]]:
    """The compiled update of a run, and a state with gradients for it, where it wants them."""
    mesh = make_mesh((1, 1, 1))
    policy, _ = programs(run, mesh)
    state = abstract_state(
        run.model, policy.optimizer, mesh, moment_memory=run.learner.moment_memory
    )
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    compiled = policy.apply.lower(state, state.params, scalar).compile()

    def placed(leaf: Any) -> Any:
        return jax.device_put(filled(leaf), leaf.sharding)

    made = jax.tree.map(placed, state)
    return compiled, (made, jax.tree.map(placed, state.params), jnp.float32(1))
