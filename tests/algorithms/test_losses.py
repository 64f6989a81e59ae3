"""Each loss against a loop over tokens in Python floats."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from rlboost_jax.algorithms.losses import (
    clipped_policy_loss,
    kl_to_reference,
)


@pytest.fixture
def tokens():
    """40 tokens, 8 of them outside any response; differences of up to 0.6 nats."""
    rng = np.random.default_rng(0)
    behaviour = -rng.exponential(1.0, 40).astype(np.float32)
    logprobs = behaviour + np.linspace(-0.6, 0.6, 40, dtype=np.float32)
    advantages = rng.permutation(np.tile([-1.5, -0.5, 0.0, 2.0], 10)).astype(np.float32)
    weights = np.where(np.arange(40) % 5 == 0, 0.0, rng.uniform(0.1, 1.0, 40)).astype(np.float32)
    return logprobs, behaviour, advantages, weights


def policy_loss_by_hand(logprobs, behaviour, advantages, weights, clip_low, clip_high):
    total, stopped = 0.0, 0
    for logprob, old, advantage, weight in zip(
        logprobs, behaviour, advantages, weights, strict=True
    ):
        if weight == 0:
            continue
        ratio = math.exp(float(logprob) - float(old))
        clipped = min(max(ratio, 1 - clip_low), 1 + clip_high)
        total -= float(weight) * min(ratio * float(advantage), clipped * float(advantage))
        stopped += (advantage > 0 and ratio > 1 + clip_high) or (
            advantage < 0 and ratio < 1 - clip_low
        )
    return total, stopped


@pytest.mark.parametrize(("clip_low", "clip_high"), [(0.2, 0.2), (0.2, 0.28), (0.05, 3.0)])
def test_policy_loss_matches_a_loop_over_tokens(tokens, clip_low, clip_high):
    loss, stopped = clipped_policy_loss(
        *map(jnp.asarray, tokens), clip_low=clip_low, clip_high=clip_high
    )
    expected, expected_stopped = policy_loss_by_hand(*tokens, clip_low, clip_high)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert stopped == expected_stopped > 0


def test_stopped_tokens_are_those_without_a_gradient(tokens):
    logprobs, *others = map(jnp.asarray, tokens)

    def loss(logprobs):
        return clipped_policy_loss(logprobs, *others, clip_low=0.2, clip_high=0.28)

    gradient, stopped = jax.grad(loss, has_aux=True)(logprobs)
    _, advantages, weights = others
    moves = (advantages != 0) & (weights > 0)
    assert stopped == (moves & (gradient == 0)).sum()


def test_on_policy_the_gradient_is_the_policy_gradient(tokens):
    logprobs, _, advantages, weights = map(jnp.asarray, tokens)

    def loss(x):
        return clipped_policy_loss(x, logprobs, advantages, weights, clip_low=0.2, clip_high=0.2)[0]

    np.testing.assert_allclose(jax.grad(loss)(logprobs), -advantages * weights, rtol=1e-6)


def test_tokens_without_weight_may_hold_anything(tokens):
    logprobs, behaviour, advantages, weights = map(jnp.asarray, tokens)

    def total(behaviour):
        policy, _ = clipped_policy_loss(
            logprobs, behaviour, advantages, weights, clip_low=0.2, clip_high=0.2
        )
        return policy + kl_to_reference(logprobs, behaviour, weights)

    wild = jnp.where(weights == 0, -1e9, behaviour)
    assert total(wild) == total(behaviour)
    assert jnp.isfinite(jax.grad(total)(wild)).all()


def test_kl_matches_a_loop_over_tokens(tokens):
    logprobs, reference, _, weights = tokens
    expected = 0.0
    for logprob, frozen, weight in zip(logprobs, reference, weights, strict=True):
        difference = float(frozen) - float(logprob)
        expected += float(weight) * (math.exp(difference) - difference - 1)
    kl = kl_to_reference(jnp.asarray(logprobs), jnp.asarray(reference), jnp.asarray(weights))
    np.testing.assert_allclose(kl, expected, rtol=1e-4)


def test_kl_is_unbiased():
    """Over all outcomes, weighted by their probability, the estimate is the divergence."""
    rng = np.random.default_rng(1)
    policy, reference = rng.dirichlet(np.ones(7)), rng.dirichlet(np.ones(7))
    exact = sum(p * math.log(p / q) for p, q in zip(policy, reference, strict=True))
    estimate = kl_to_reference(*(jnp.log(x) for x in (policy, reference)), jnp.asarray(policy))
    np.testing.assert_allclose(estimate, exact, rtol=1e-5)
