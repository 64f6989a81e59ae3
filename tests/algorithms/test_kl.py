"""Estimates and their gradients against sums over all outcomes: nothing is sampled.

Every expectation over a policy of seven outcomes is a finite sum, so that what is unbiased is
equal, and what is biased is not.
"""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.algorithms.kl import (
    distilled_losses,
    kl_estimates,
    kl_losses,
    kl_rewards,
)

RNG = np.random.default_rng(1)
LOGITS, OLD_LOGITS, REFERENCE = RNG.normal(size=(3, 7))
EVERYTHING = jnp.ones(7, bool)


def probabilities(logits):
    return np.exp(logits) / np.exp(logits).sum()


def exact(logits, reference):
    """KL(policy, reference)."""
    logprobs, frozen = jax.nn.log_softmax(logits), jax.nn.log_softmax(reference)
    return (jnp.exp(logprobs) * (logprobs - frozen)).sum()


def mean_gradient(estimator, gradient, *, sampled_from):
    return mean_gradient_of(
        partial(kl_losses, estimator=estimator, gradient=gradient), sampled_from=sampled_from
    )


def mean_gradient_of(losses_of, *, sampled_from):
    """Over all outcomes, of the loss that each would give if it were sampled."""
    weights = probabilities(sampled_from)

    def loss(logits):
        logprobs, old = jax.nn.log_softmax(logits), jax.nn.log_softmax(sampled_from)
        frozen = jax.nn.log_softmax(REFERENCE)
        return (losses_of(logprobs, frozen, EVERYTHING, logprobs - old) * weights).sum()

    with jax.enable_x64(True):
        return jax.grad(loss)(jnp.asarray(LOGITS))


@pytest.fixture
def true_gradient():
    with jax.enable_x64(True):
        return jax.grad(exact)(jnp.asarray(LOGITS), REFERENCE)


@pytest.mark.parametrize(("estimator", "unbiased"), [("k1", True), ("k2", False), ("k3", True)])
def test_which_estimates_are_unbiased(estimator, unbiased):
    with jax.enable_x64(True):
        logprobs, frozen = jax.nn.log_softmax(LOGITS), jax.nn.log_softmax(REFERENCE)
        values = kl_estimates(logprobs, frozen, EVERYTHING, estimator=estimator)
        mean, divergence = (values * probabilities(LOGITS)).sum(), exact(LOGITS, REFERENCE)
    assert math.isclose(mean, divergence, rel_tol=1e-9) == unbiased


def test_the_trap_of_k1_in_the_loss_its_own_gradient_is_nothing_on_average():
    np.testing.assert_allclose(mean_gradient("k1", "own", sampled_from=LOGITS), 0, atol=1e-12)


def test_the_trap_of_k3_in_the_loss_its_own_gradient_is_of_the_other_divergence(true_gradient):
    found = mean_gradient("k3", "own", sampled_from=LOGITS)
    with jax.enable_x64(True):
        other = jax.grad(lambda logits: exact(REFERENCE, logits))(jnp.asarray(LOGITS))
    np.testing.assert_allclose(found, other, atol=1e-12)
    assert np.abs(found - true_gradient).max() > 0.01


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [("k2", "own")]
    + [(kind, "straight_through") for kind in ("k1", "k2", "k3")]
    + [("k1", "importance"), ("k3", "importance")],
)
def test_gradients_that_are_right_on_policy(estimator, gradient, true_gradient):
    found = mean_gradient(estimator, gradient, sampled_from=LOGITS)
    np.testing.assert_allclose(found, true_gradient, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_trap_of_kl_off_policy_only_the_ratio_makes_it_right(estimator, true_gradient):
    found = mean_gradient(estimator, "importance", sampled_from=OLD_LOGITS)
    np.testing.assert_allclose(found, true_gradient, atol=1e-12)
    astray = mean_gradient(estimator, "straight_through", sampled_from=OLD_LOGITS)
    assert np.abs(astray - true_gradient).max() > 0.01


@pytest.mark.parametrize("sampled_from", [LOGITS, OLD_LOGITS], ids=["on policy", "off policy"])
def test_the_kl_to_a_teacher_has_its_gradient_whoever_sampled(sampled_from, true_gradient):
    found = mean_gradient_of(distilled_losses, sampled_from=sampled_from)
    np.testing.assert_allclose(found, true_gradient, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("gradient", ["own", "straight_through"])
def test_the_value_is_the_estimate_whatever_the_gradient(estimator, gradient):
    logprobs, frozen, log_ratio = jnp.array([-1.0, -2.0]), jnp.array([-1.5, -1.0]), jnp.zeros(2)
    losses = kl_losses(
        logprobs, frozen, jnp.ones(2, bool), log_ratio, estimator=estimator, gradient=gradient
    )
    by_hand = {
        "k1": [0.5, -1.0],
        "k2": [0.125, 0.5],
        "k3": [math.exp(-0.5) + 0.5 - 1, math.exp(1.0) - 1.0 - 1],
    }[estimator]
    np.testing.assert_allclose(losses, by_hand, rtol=1e-6)
    taken = kl_rewards(
        np.asarray(logprobs), np.asarray(frozen), estimator=estimator, coefficient=0.1
    )
    np.testing.assert_allclose(taken, [-0.1 * value for value in by_hand], rtol=1e-6)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_what_the_mask_leaves_out_may_hold_anything(estimator):
    mask = jnp.array([True, False])

    def total(logprobs):
        frozen = jnp.array([-1.5, jnp.nan])
        return kl_estimates(logprobs, frozen, mask, estimator=estimator).sum()

    assert jnp.isfinite(total(jnp.array([-1.0, -jnp.inf])))
    assert jax.grad(total)(jnp.array([-1.0, -jnp.inf]))[1] == 0
