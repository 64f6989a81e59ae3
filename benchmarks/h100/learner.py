"""The learner's programs over a mesh of H100s.

Every row of a batch is one sequence of the row's length: attention then has the most to do.
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh
from rlboost_kernels.grouped.layout import ROWS

from benchmarks.h100.checkpoints import with_moments_on_device
from benchmarks.h100.cost import Assumptions, Call
from benchmarks.h100.names import GRADIENTS, gradients_name
from benchmarks.h100.program import (
    Program,
    Work,
    attention_flops,
    packed_attention_calls,
    product_parameters,
)
from rlboost_jax.learner.packing import batch_shapes, empty
from rlboost_jax.learner.programs.critic import CriticPrograms
from rlboost_jax.learner.programs.policy import PolicyPrograms
from rlboost_jax.learner.setup.preparation import programs as programs_of
from rlboost_jax.learner.state import abstract_state
from rlboost_jax.models.adapters import base_model
from rlboost_jax.models.parameter_sharding import AXES, batch_sharding, param_shardings
from rlboost_jax.models.params import abstract_params
from rlboost_jax.settings.memory_estimates import (
    MOST_BLOCK,
    MOST_DENSE_TOKENS,
    attention_bytes_per_device,
    gradient_bytes_per_device,
    learner_bytes_per_device,
    moment_bytes,
    num_adapter_parameters,
    num_trained_parameters,
    share_of,
    weight_bytes,
)
from rlboost_jax.settings.run_config import RunConfig

_ASSUMED = (
    "rows are one sequence each; a fused attention kernel reads its operands once and multiplies "
    "tokens that see each other twice forwards, 7 times backwards (cuDNN's 5)"
)
_ATTENTION_LOOP = r"(while/body.*){2}while$"  # over blocks of keys, in blocks of queries, in layers


def programs(run: RunConfig, devices: list[Any], *, all_lengths: bool) -> Iterator[Program]:
    """A learner's programs: gradients, forward passes, sums and updates.

    Args:
        devices: at least as many as the mesh has.
        all_lengths: gradients of each length of rows, and not of the longest alone.
    """
    compiled, mesh = with_moments_on_device(run), _mesh(run, devices)
    policy, critic = programs_of(compiled, mesh)
    state = abstract_state(compiled.model, policy.optimizer, mesh)
    if run.model.lora.rank:
        policy = policy.over(_abstract_base(run, mesh))
    reference = state.params if run.algorithm.has_reference else None
    in_loss = None if run.algorithm.kl_in_reward else reference
    in_reward = reference if run.algorithm.kl_in_reward else None
    of_device = partial(_program, run, mesh)
    shapes = batch_shapes(run.pack_rows, run.row_tokens, run.learner.row_lengths)
    for rows, tokens in shapes if all_lengths else shapes[:1]:
        batch = _batch(rows, tokens, policy, mesh)
        yield of_device(
            gradients_name(rows, tokens),
            partial(policy.gradients.lower, state.params, in_loss, batch),
            _passes(run, rows, tokens, trained=True, reference=in_loss is not None),
            row_tokens=tokens,
        )
    rows, tokens = shapes[0]
    batch = _batch(rows, tokens, policy, mesh)
    forward = partial(of_device, row_tokens=tokens)
    yield forward(
        "gaps", partial(policy.gaps.lower, state.params, batch), _passes(run, rows, tokens)
    )
    # The evaluation pass, which whitening, a critic, a KL term in rewards and several updates of a
    # batch ask for. Of every run: one line of its configuration turns it on.
    yield forward(
        "logprobs",
        partial(policy.logprobs.lower, state.params, in_reward, batch),
        _passes(run, rows, tokens, reference=in_reward is not None),
    )
    yield from _updates(of_device, run, policy, state, num_trained_parameters(run.model))
    if critic is not None:
        critic_state = critic.abstract()
        values = partial(critic.values.lower, critic_state.params, batch)
        yield forward("critic values", values, _passes(run, rows, tokens))
        gradients = partial(critic.gradients.lower, critic_state.params, batch)
        work = _passes(run, rows, tokens, trained=True)
        yield forward("critic gradients", gradients, work)


def _updates(
    of_device: Any,
    run: RunConfig,
    step: PolicyPrograms | CriticPrograms,
    state: Any,
    parameters: int,
) -> Iterator[Program]:
    """The sum of two gradients, and AdamW."""
    _, fsdp, tensor = run.learner.mesh
    each = parameters / (fsdp * tensor)
    sums = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in ("loss", "tokens")}
    part = (state.params, sums)
    yield of_device(
        "combine", partial(step.combine.lower, part, part), Work(num_bytes=3 * 4 * each)
    )
    moments = moment_bytes(run) / (fsdp * tensor)
    on_host = run.learner.moment_memory == "host"
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    yield of_device(
        "apply",
        partial(step.apply.lower, state, state.params, scalar),
        Work(num_bytes=3 * 4 * each + 2 * moments),
        moments=moments if on_host else 0.0,
    )


def _program(
    run: RunConfig,
    mesh: Mesh,
    name: str,
    lower: Any,
    work: Work,
    *,
    row_tokens: int = 0,
    moments: float = 0.0,
) -> Program:
    """A program with what the plan says of its memory.

    Args:
        moments: bytes that come over from the host for this program.
    """
    trees = learner_bytes_per_device(run)
    of_gradients = name.startswith(GRADIENTS)
    working = gradient_bytes_per_device(run) if of_gradients else attention_bytes_per_device(run)
    engine = share_of(run.model, run.engine.tensor_parallel)
    return Program(
        name=name,
        lower=lower,
        devices=mesh.size,
        work=work,
        plan_bytes=trees + working,
        held_bytes=trees + weight_bytes(engine, run.weights.rollout_dtype) + moments,
        host_bytes=moments,
        assumptions=_assumptions(run, work, row_tokens),
        assumed=_assumed(run) if row_tokens else "",
    )


def _assumptions(run: RunConfig, work: Work, row_tokens: int) -> Assumptions:
    """In loops a block of queries meets its own block of keys and all before it; a fused kernel
    multiplies what sees each other, the mean of all layers where some have windows. Experts have
    equally many rows each, and half a tile besides to fill up their last one."""
    model, (data, fsdp, tensor) = run.model, run.learner.mesh
    trips: list[tuple[str, float]] = [(r"more_shares/while$", 0.0)]
    calls: tuple[Call, ...] = ()
    if row_tokens > MOST_DENSE_TOKENS:
        blocks = math.ceil(row_tokens / MOST_BLOCK)
        trips.append((_ATTENTION_LOOP, (blocks + 1) / 2))
        heads = _rows(run, row_tokens) * model.num_query_heads / (data * fsdp * tensor)
        calls = packed_attention_calls(model, row_tokens, heads)
    grouped = None
    if model.num_experts:
        parts = tensor if model.num_experts % tensor == 0 else 1
        choices = work.tokens / (data * fsdp) * model.experts_per_token
        grouped = (choices + model.num_experts * ROWS / 2) / parts
    return Assumptions(trips=tuple(trips), calls=calls, grouped_rows=grouped)


def _assumed(run: RunConfig) -> str:
    return _ASSUMED + ("; experts have equally many rows each" if run.model.num_experts else "")


def _rows(run: RunConfig, row_tokens: int) -> int:
    """Rows of a packed batch whose rows have so many tokens."""
    shapes = batch_shapes(run.pack_rows, run.row_tokens, run.learner.row_lengths)
    return next(rows for rows, tokens in shapes if tokens == row_tokens)


def _passes(
    run: RunConfig, rows: int, tokens: int, *, trained: bool = False, reference: bool = False
) -> Work:
    """Forwards, and if trained backwards: twice that again, or once with adapters, whose base has
    no gradients. Source: Kaplan et al. 2020, arXiv:2001.08361, section 2.1."""
    adapters = num_adapter_parameters(run.model)
    products = 2 * product_parameters(base_model(run.model))
    attention = attention_flops(run.model, tokens / 2)
    each = products + 2 * adapters + attention
    if trained:
        each += (products if adapters else 2 * products) + 4 * adapters + 2 * attention
    if reference:
        each += products + attention
    return Work(flops=each * rows * tokens, tokens=rows * tokens)


def _mesh(run: RunConfig, devices: list[Any]) -> Mesh:
    shape = run.learner.mesh
    grid = np.array(devices[: math.prod(shape)]).reshape(shape)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def _batch(rows: int, tokens: int, step: PolicyPrograms, mesh: Mesh) -> Any:
    place = batch_sharding(mesh)
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        empty(rows, tokens, step.routing),
    )


def _abstract_base(run: RunConfig, mesh: Mesh) -> Any:
    model = base_model(run.model)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, run.model.dtype, sharding=place),
        abstract_params(model),
        param_shardings(model, mesh),
    )
