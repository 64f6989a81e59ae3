import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.ratios import (
    log_ratios,
    sequence_log_ratios,
    sequence_token_log_ratios,
)

MASK = jnp.array([[False, True, True, True, False, True]])
SEGMENTS = jnp.array([[1, 1, 1, 1, 2, 2]])
LOG_RATIOS = jnp.array([[0.0, 0.3, -0.1, 0.4, 0.0, -0.5]])


@pytest.mark.parametrize("difference", [25.0, -25.0])
def test_the_trap_of_an_endless_ratio_it_is_cut_at_twenty_nats(difference):
    def ratio(logprobs):
        return jnp.exp(log_ratios(logprobs, jnp.zeros(1), jnp.ones(1, bool))).sum()

    np.testing.assert_allclose(ratio(jnp.array([difference])), np.exp(np.sign(difference) * 20))
    assert jax.grad(ratio)(jnp.array([difference])) == 0


def test_outside_the_mask_anything_may_be():
    def total(logprobs):
        old = jnp.array([0.0, jnp.nan])
        return log_ratios(logprobs, old, jnp.array([True, False])).sum()

    assert total(jnp.array([0.5, jnp.inf])) == 0.5
    assert jax.grad(total)(jnp.array([0.5, jnp.inf])).tolist() == [1, 0]


def test_the_ratio_of_a_response_is_the_geometric_mean_of_its_tokens():
    found = sequence_log_ratios(LOG_RATIOS, MASK, SEGMENTS)
    np.testing.assert_allclose(found, [[0, 0.2, 0.2, 0.2, 0, -0.5]], atol=1e-7)


def test_the_trap_of_gspo_token_value_of_the_response_gradient_of_the_token():
    value = sequence_token_log_ratios(LOG_RATIOS, MASK, SEGMENTS)
    np.testing.assert_allclose(value, sequence_log_ratios(LOG_RATIOS, MASK, SEGMENTS), atol=1e-7)
    weights = jnp.arange(6.0)[None]

    def total(level):
        return lambda x: (level(x, MASK, SEGMENTS) * weights).sum()

    of_token = jax.jit(jax.grad(total(sequence_token_log_ratios)))(LOG_RATIOS)
    assert of_token.tolist() == weights.tolist()
    shared = jax.jit(jax.grad(total(sequence_log_ratios)))(LOG_RATIOS)
    np.testing.assert_allclose(shared, [[0, 2, 2, 2, 0, 5]], atol=1e-6)
