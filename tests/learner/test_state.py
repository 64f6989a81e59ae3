import math
from dataclasses import replace
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from rlboost_jax.learner.state import (
    NoHostMemory,
    abstract_state,
    init_state,
    learning_rate_schedule,
    make_optimizer,
    state_shardings,
)
from rlboost_jax.models.parameter_sharding import make_mesh
from rlboost_jax.models.params import flatten_params, init_params

FALL = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}


@pytest.mark.parametrize("schedule", FALL)
@pytest.mark.parametrize("warmup", [0, 4])
def test_learning_rate_rises_then_follows_its_schedule(config, schedule, warmup):
    learner = replace(config.learner, schedule=schedule, schedule_warmup_steps=warmup)
    rate = learning_rate_schedule(learner, 20)
    for step in range(25):
        rise = min(1.0, (step + 1) / warmup) if warmup else 1.0
        fall = FALL[schedule](min(1.0, max(0, step - warmup) / (20 - warmup)))
        expected = learner.learning_rate * rise * fall
        np.testing.assert_allclose(rate(jnp.int32(step)), expected, rtol=1e-5, atol=1e-9)


def test_an_unknown_schedule_names_the_known_ones(config):
    with pytest.raises(ValueError, match=r"learner\.schedule is 'cubic'; choose one of constant"):
        learning_rate_schedule(replace(config.learner, schedule="cubic"), 10)


def adamw_by_hand(params, gradients, learner, num_updates):
    """Two moments in float64; every update sees the same gradients."""
    norm = math.sqrt(sum(float((g.astype(np.float64) ** 2).sum()) for g in gradients.values()))
    scale = min(1.0, learner.max_gradient_norm / norm)
    moved = {}
    for name, start in params.items():
        p, g = start.astype(np.float64), gradients[name].astype(np.float64) * scale
        m = v = 0.0
        for t in range(1, num_updates + 1):
            m = learner.beta1 * m + (1 - learner.beta1) * g
            v = learner.beta2 * v + (1 - learner.beta2) * g * g
            step = m / (1 - learner.beta1**t) / (np.sqrt(v / (1 - learner.beta2**t)) + 1e-8)
            decay = 0.0 if name.endswith("scale") else learner.weight_decay
            p = p - learner.learning_rate * (step + decay * p)
        moved[name] = p
    return moved


def some_gradients(config):
    drawn = jax.device_get(init_params(config.model, 1))
    return jax.tree.map(lambda leaf: leaf * np.float32(0.3) + np.float32(0.1), drawn)


def updating(optimizer):
    @jax.jit
    def update(gradients, state, params):
        updates, state = optimizer.update(gradients, state, params)
        return jax.tree.map(jnp.add, params, updates), state

    return update


@pytest.mark.parametrize("max_gradient_norm", [0.5, 1e6])
def test_updates_are_clipped_adamw_that_spares_the_norms(config, max_gradient_norm):
    learner = replace(config.learner, weight_decay=0.1, max_gradient_norm=max_gradient_norm)
    optimizer = make_optimizer(learner, 10)
    params, gradients = init_params(config.model, 0), some_gradients(config)
    update, moved, state = updating(optimizer), params, jax.jit(optimizer.init)(params)
    for _ in range(3):
        moved, state = update(gradients, state, moved)
    host = [{k: np.asarray(v) for k, v in flatten_params(x).items()} for x in (params, gradients)]
    expected = adamw_by_hand(*host, learner, 3)
    for name, leaf in flatten_params(moved).items():
        np.testing.assert_allclose(leaf, expected[name], atol=1e-5, err_msg=name)


def test_a_fresh_state_is_as_described(config):
    mesh = make_mesh((1, 1, 1))
    optimizer = make_optimizer(config.learner, 10)
    shardings = state_shardings(config.model, optimizer, mesh)
    state = init_state(init_params(config.model, 0), optimizer, shardings)

    def describe(leaf):
        return leaf.shape, leaf.dtype, leaf.sharding

    assert jax.tree.map(describe, state) == jax.tree.map(
        describe, abstract_state(config.model, optimizer, mesh)
    )
    assert state.step == 0
    assert all((leaf == 0).all() for leaf in jax.tree.leaves(state.opt_state))


def test_moments_lie_where_their_parameters_lie(config):
    optimizer = make_optimizer(config.learner, 10)
    shardings = state_shardings(config.model, optimizer, make_mesh((1, 1, 1)))
    for moment in ("mu", "nu"):
        assert optax.tree_utils.tree_get(shardings.opt_state, moment) == shardings.params


def test_moments_in_bfloat16_are_rounded_between_updates_only(config):
    """Against a loop that rounds what it remembers and nothing else."""
    learner = replace(config.learner, moment_dtype="bfloat16", max_gradient_norm=1e6)
    optimizer = make_optimizer(learner, 10)
    start = init_params(config.model, 0)
    gradients = some_gradients(config)
    update, params, state = updating(optimizer), start, jax.jit(optimizer.init)(start)
    m, v = (jax.tree.map(np.zeros_like, jax.device_get(start)) for _ in range(2))
    expected = jax.device_get(start)
    for t in range(1, 4):
        params, state = update(gradients, state, params)

        def by_hand(p, g, m, v, t=t):
            m = learner.beta1 * np.float32(m) + (1 - learner.beta1) * np.asarray(g)
            v = learner.beta2 * np.float32(v) + (1 - learner.beta2) * np.asarray(g) ** 2
            root = np.sqrt(v / (1 - learner.beta2**t)) + 1e-8
            p = p - learner.learning_rate * m / (1 - learner.beta1**t) / root
            return p, m.astype(ml_dtypes.bfloat16), v.astype(ml_dtypes.bfloat16)

        moved = jax.tree.map(by_hand, expected, gradients, m, v)
        expected, m, v = (
            jax.tree.map(lambda _, leaf, i=i: leaf[i], start, moved) for i in range(3)
        )
    adam = state[1][0]
    assert {leaf.dtype for leaf in jax.tree.leaves((adam.mu, adam.nu))} == {jnp.dtype("bfloat16")}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), params, expected)
    host = [{k: np.asarray(v) for k, v in flatten_params(x).items()} for x in (start, gradients)]
    plain = adamw_by_hand(*host, learner, 3)
    gaps = [np.abs(plain[name] - leaf).max() for name, leaf in flatten_params(params).items()]
    assert max(gaps) > 4e-5, "or rounding would not show"


def test_moments_in_bfloat16_have_shardings_and_checkpoints_of_their_own_type(config):
    learner = replace(config.learner, moment_dtype="bfloat16")
    mesh, optimizer = make_mesh((1, 1, 1)), make_optimizer(learner, 10)
    shardings = state_shardings(config.model, optimizer, mesh)
    state = init_state(init_params(config.model, 0), optimizer, shardings)
    abstract = abstract_state(config.model, optimizer, mesh)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), state) == jax.tree.map(
        lambda x: (x.shape, x.dtype), abstract
    )


def test_a_backend_without_host_memory_says_so(config):
    device = Mock(spec=jax.Device, platform="metal", id=0, process_index=0)
    device.addressable_memories.return_value = [Mock(kind="shared"), Mock(kind="device")]
    mesh = Mesh(np.array([device]).reshape(1, 1, 1), make_mesh((1, 1, 1)).axis_names)
    optimizer = make_optimizer(config.learner, 10)
    assert state_shardings(config.model, optimizer, mesh)
    with pytest.raises(
        NoHostMemory,
        match=r"learner\.moment_memory is 'host'; metal devices reach device, shared and no pinned",
    ):
        state_shardings(config.model, optimizer, mesh, moment_memory="host")
