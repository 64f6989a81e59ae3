import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.algorithms.returns import generalized_advantages, rewards_to_go

numbers = st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=8)
shares = st.floats(0, 1)


@given(numbers, shares, shares)
def test_advantages_are_the_discounted_sum_of_surprises(pairs, discount, gae_lambda):
    rewards, values = np.array(pairs).T
    advantages, returns = generalized_advantages(
        rewards, values, discount=discount, gae_lambda=gae_lambda
    )
    following = [*values[1:], 0.0]
    surprises = [r + discount * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    for t in range(len(rewards)):
        expected = sum(
            (discount * gae_lambda) ** (k - t) * surprises[k] for k in range(t, len(rewards))
        )
        np.testing.assert_allclose(advantages[t], expected, atol=1e-9)
    np.testing.assert_allclose(returns, advantages + values, atol=1e-12)


@given(numbers, shares)
def test_with_lambda_one_the_critic_is_only_a_baseline(pairs, discount):
    rewards, values = np.array(pairs).T
    advantages, returns = generalized_advantages(rewards, values, discount=discount, gae_lambda=1.0)
    to_go = [
        sum(discount ** (k - t) * rewards[k] for k in range(t, len(rewards)))
        for t in range(len(rewards))
    ]
    np.testing.assert_allclose(returns, to_go, atol=1e-9)
    np.testing.assert_allclose(rewards_to_go(rewards, discount=discount), to_go, atol=1e-9)
    np.testing.assert_allclose(advantages, np.array(to_go) - values, atol=1e-9)


def test_three_tokens_by_hand():
    advantages, returns = generalized_advantages(
        np.array([0.0, 0.0, 1.0]), np.array([0.5, 0.25, 0.5]), discount=1.0, gae_lambda=0.5
    )
    assert advantages.tolist() == [-0.25 + 0.25, 0.25 + 0.25, 0.5]
    assert returns.tolist() == [0.5, 0.75, 1.0]
