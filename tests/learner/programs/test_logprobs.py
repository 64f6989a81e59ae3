"""Log-probabilities under truncated sampling against float64 NumPy, which sorts."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_kernels import tokens_from_noise

from rlboost_jax.learner.programs import logprobs
from rlboost_jax.settings.memory_estimates import LEAST_LOGIT_ROWS
from rlboost_jax.settings.sampling_config import SamplingConfig

N, E, V = 40, 12, 50
SETTINGS = [(0.7, 1.0, 0), (1.3, 0.6, 0), (0.9, 1.0, 7), (1.0, 0.8, 12)]


@pytest.fixture
def factors():
    rng = np.random.default_rng(0)
    return jnp.float32(rng.normal(size=(N, E))), jnp.float32(rng.normal(size=(E, V)))


def settings(temperature: float, top_p: float, top_k: int) -> SamplingConfig:
    return SamplingConfig(temperature=temperature, top_p=top_p, top_k=top_k, max_response_tokens=8)


def by_sorting(logits, sampling):
    """Renormalised probabilities of what top-k and then top-p leave."""
    weights = np.exp((logits - logits.max(1, keepdims=True)) / sampling.temperature)
    for row in weights:
        order = np.argsort(-row, kind="stable")
        row[order[sampling.top_k or V :]] = 0
        before = np.cumsum(row[order]) - row[order]
        row[order[before >= sampling.top_p * row.sum()]] = 0
    return weights / weights.sum(1, keepdims=True)


def samples(logits, sampling):
    """What the engine's sampler draws, and the log-probabilities it gives."""
    noise = np.random.default_rng(1).uniform(0.01, 0.99, N).astype(np.float32)
    return tokens_from_noise(
        jnp.asarray(logits, jnp.float32),
        jnp.asarray(noise),
        jnp.full(N, sampling.temperature, jnp.float32),
        jnp.full(N, sampling.top_p, jnp.float32),
        jnp.full(N, sampling.top_k, jnp.int32),
    )


def sampled_logprobs(hidden, unembedding, tokens, sampling, **options):
    """One program, made anew at each call, instead of one for each of its operations."""

    @jax.jit
    def program(*arrays):
        return logprobs.sampled_logprobs(*arrays, sampling, **options)

    return program(hidden, unembedding, tokens)


@pytest.mark.parametrize("setting", SETTINGS)
def test_they_are_those_of_the_sampler_and_of_sorting(factors, setting):
    hidden, unembedding = factors
    sampling = settings(*setting)
    logits = np.float64(hidden) @ np.float64(unembedding)
    tokens, behaviour = samples(logits, sampling)
    ours, entropies, below, _ = sampled_logprobs(hidden, unembedding, tokens, sampling)
    probabilities = by_sorting(logits, sampling)
    expected = np.log(probabilities[np.arange(N), tokens])
    np.testing.assert_allclose(ours, expected, atol=5e-6)
    np.testing.assert_allclose(ours, behaviour, atol=5e-6)
    safe = np.where(probabilities > 0, probabilities, 1)
    np.testing.assert_allclose(entropies, -(safe * np.log(safe)).sum(1), atol=5e-6)
    smaller = [
        row[:token].sum() for row, token in zip(probabilities, np.asarray(tokens), strict=True)
    ]
    np.testing.assert_allclose(below, smaller, atol=5e-6)


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradient_is_that_of_the_truncated_softmax(factors, setting):
    hidden, unembedding = factors
    sampling = settings(*setting)
    logits = np.float64(hidden) @ np.float64(unembedding)
    tokens, _ = samples(logits, sampling)
    total = lambda h: sampled_logprobs(h, unembedding, tokens, sampling)[0].sum()  # noqa: E731
    off = (np.eye(V)[np.asarray(tokens)] - by_sorting(logits, sampling)) / sampling.temperature
    np.testing.assert_allclose(jax.grad(total)(hidden), off @ unembedding.T, atol=2e-5)


@pytest.mark.optimized  # else a tanh that is computed twice is cut where it was kept
@pytest.mark.parametrize("setting", [(0.7, 1.0, 0), (1.0, 0.8, 12)])
def test_a_model_s_soft_cap_comes_before_the_temperature(factors, setting):
    hidden, unembedding = factors
    sampling, cap = settings(*setting), 3.0
    logits = cap * np.tanh(np.float64(hidden) @ np.float64(unembedding) / cap)
    tokens, behaviour = samples(logits, sampling)
    ours, *_ = sampled_logprobs(hidden, unembedding, tokens, sampling, soft_cap=cap)
    expected = np.log(by_sorting(logits, sampling)[np.arange(N), tokens])
    np.testing.assert_allclose(ours, expected, atol=5e-6)
    np.testing.assert_allclose(ours, behaviour, atol=5e-6)


ON_DEVICES = """
import itertools
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding
from rlboost_jax.settings.sampling_config import SamplingConfig
from rlboost_jax.learner.programs import logprobs
from rlboost_jax.models.parameter_sharding import batch_sharding, make_mesh, unembedding_spec

N, E = 48, 12
logprobs.LOGIT_BLOCKS["cpu"], logprobs.LEAST_LOGIT_ROWS = 200, 4
rng = np.random.default_rng(0)
plain = SamplingConfig(temperature=0.7, top_p=1.0, top_k=0, max_response_tokens=8)
cut = SamplingConfig(temperature=1.0, top_p=0.8, top_k=12, max_response_tokens=8)
meshes = (1, 4, 2), (2, 2, 2), (1, 1, 8), (8, 1, 1)
for V, sampling in itertools.product((48, 50), (plain, cut)):
    hidden, unembedding = (jnp.float32(rng.normal(size=size)) for size in ((N, E), (E, V)))
    tokens, factors = jnp.int32(rng.integers(V, size=N)), jnp.float32(rng.normal(size=(3, N)))

    def total(hidden, unembedding, mesh):
        found = logprobs.sampled_logprobs(
            hidden, unembedding, tokens, sampling, soft_cap=4.0, mesh=mesh)
        return sum((f * x).sum() for f, x in zip(factors, found)), found

    program = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True), static_argnums=2)
    expected = jax.tree.leaves(program(hidden, unembedding, None))
    for mesh in map(make_mesh, meshes):
        found = program(
            jax.device_put(hidden, batch_sharding(mesh)),
            jax.device_put(unembedding, NamedSharding(mesh, unembedding_spec((E, V), mesh))),
            mesh)
        for x, y in zip(jax.tree.leaves(found), expected, strict=True):
            np.testing.assert_allclose(x, y, atol=1e-6 * (1 + np.abs(y).max()))
print("ok")
"""


def test_on_a_mesh_they_and_their_gradients_are_those_of_one_device(run_with_devices):
    """Whether or not the mesh divides the vocabulary and the width, in several blocks."""
    assert run_with_devices(ON_DEVICES, 8).strip() == "ok"


def test_a_token_that_the_learner_would_cut_keeps_a_finite_logprob(factors):
    hidden, unembedding = factors
    tokens = jnp.asarray(np.argmin(np.asarray(hidden) @ unembedding, axis=1), jnp.int32)
    ours, *_ = sampled_logprobs(hidden, unembedding, tokens, settings(1.0, 0.5, 0))
    assert np.isfinite(ours).all() and (np.asarray(ours) < -1).all()


def test_blocks_of_rows_change_nothing(factors):
    """Three blocks; the last one is filled up."""
    hidden, unembedding = jnp.tile(factors[0], (8, 1)), factors[1]
    assert 2 * LEAST_LOGIT_ROWS < len(hidden) < 3 * LEAST_LOGIT_ROWS
    tokens = jnp.arange(len(hidden), dtype=jnp.int32) % V
    whole, in_blocks = (
        sampled_logprobs(hidden, unembedding, tokens, settings(1.0, 0.8, 12), block_logits=most)
        for most in (None, 1)
    )
    for one, other in zip(whole, in_blocks, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-6)


@pytest.mark.parametrize("setting", [settings(0.7, 1.0, 0), settings(1.0, 0.8, 12)], ids=str)
def test_of_some_rows_and_a_matrix_as_it_lies(factors, setting):
    """What is not looked at is 0, and has no gradient; the rest is as it was."""
    hidden, unembedding = jnp.tile(factors[0], (8, 1)), factors[1]
    tokens = jnp.arange(len(hidden), dtype=jnp.int32) % V
    where = np.random.default_rng(0).random(len(hidden)) < 0.3
    plan = logprobs.HeadPlan(where=jnp.asarray(where), transposed=True, frozen=True)

    def total(hidden, matrix, **options):
        found = logprobs.sampled_logprobs(hidden, matrix, tokens, setting, **options)
        return jnp.where(where, found[0], 0.0).sum(), found

    gradients_of = jax.grad(total, has_aux=True)
    expected = jax.jit(gradients_of)(hidden, unembedding)
    found = jax.jit(partial(gradients_of, plan=plan))(hidden, unembedding.T)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        other = np.where(where.reshape(-1, *[1] * (other.ndim - 1)), other, 0.0)
        np.testing.assert_allclose(one, other, atol=2e-6)
