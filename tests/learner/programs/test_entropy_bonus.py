"""The entropy in the loss, against a softmax in float64."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rlboost_jax.learner.packing import pack, update_divisor
from rlboost_jax.learner.programs.logprobs import sampled_logprobs
from rlboost_jax.learner.programs.objective import objective
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.sampling_config import SamplingConfig
from tests.learner.episodes.test_estimates import trajectory
from tests.learner.update.test_batch import build, updated

__all__ = ["build"]  # a fixture
COEFFICIENT, V, E = 0.25, 11, 6


def kept_by_hand(logits, sampling):
    """The fewest entries whose share reaches top-p, out of the best top-k."""
    chances = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    order, keep = np.argsort(-logits), np.zeros(V, bool)
    if sampling.top_k:
        order = order[: sampling.top_k]
    before = np.cumsum(chances[order]) - chances[order]
    keep[order[before < sampling.top_p * chances[order].sum()]] = True
    return keep


def entropy_by_hand(logits, keep):
    left = np.where(keep, np.exp(logits - logits.max()), 0.0)
    chances = left / left.sum()
    logs = np.log(np.where(keep, chances, 1.0))
    return -(chances * logs).sum(), -chances * (logs - (chances * logs).sum())  # and slopes


@pytest.mark.parametrize(
    ("temperature", "top_p", "top_k"), [(1.0, 1.0, 0), (0.7, 1.0, 0), (1.3, 0.8, 0), (0.7, 0.9, 4)]
)
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "sequence_sum", "constant"])
def test_its_gradient_is_that_of_the_distribution_sampled_from(
    temperature, top_p, top_k, aggregation
):
    """Per token and weighted as the loss is: responses of 2 and of 3 tokens, and one without a
    part in the update. All advantages are 0."""
    sampling = SamplingConfig(temperature=temperature, top_p=top_p, top_k=top_k)
    algorithm = replace(
        PRESETS["grpo"], entropy_coefficient=COEFFICIENT, loss_aggregation=aggregation
    )
    members = [trajectory(0, 1.0, 2), trajectory(1, 1.0, 3), trajectory(2, 1.0, 4)]
    members[2] = replace(members[2], trained=False)
    (batch,) = pack(members, rows=1, row_tokens=12, loss_aggregation=aggregation)
    rng = np.random.default_rng(3)
    hidden, head = rng.normal(size=(12, E)), rng.normal(size=(E, V))
    tokens = jnp.ravel(batch.targets)

    def loss(hidden, head):
        logprobs, entropy, *_ = sampled_logprobs(hidden, head, tokens, sampling)
        return objective(algorithm, batch, logprobs, entropy)[0]

    arrays = jnp.asarray(hidden, jnp.float32), jnp.asarray(head, jnp.float32)
    found, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))(*arrays)

    total, slopes = 0.0, np.zeros((12, V))
    sampled = np.flatnonzero(np.ravel(batch.response_mask))
    for place in sampled:
        weight = float(np.ravel(batch.weights)[place])
        logits = hidden[place] @ head / temperature
        keep = kept_by_hand(logits, sampling)
        keep[int(tokens[place])] = True  # as the learner keeps what was sampled
        entropy, slope = entropy_by_hand(logits, keep)
        total -= COEFFICIENT * weight * entropy
        slopes[place] = -COEFFICIENT * weight * slope / temperature
    assert float(found) == pytest.approx(total, rel=1e-5)
    np.testing.assert_allclose(gradients[0], slopes @ head.T, atol=2e-6)
    np.testing.assert_allclose(gradients[1], hidden.T @ slopes, atol=2e-5)
    weights = np.ravel(batch.weights)[sampled]
    expected = update_divisor(members, aggregation, max_response_tokens=1)
    assert weights.sum() == pytest.approx(5.0 if "mean" not in aggregation else expected)


def test_it_is_off_unless_it_is_asked_for():
    assert all(preset.entropy_coefficient == 0 for preset in PRESETS.values())


def test_an_update_by_it_alone_makes_the_policy_less_sure(build, groups):
    """Equal rewards teach nothing; the bonus, which is no reward, does."""
    equal = tuple(
        replace(
            g, trajectories=tuple(replace(t, verdict=Verdict(reward=1.0)) for t in g.trajectories)
        )
        for g in groups
    )
    learners = build("grpo", entropy_coefficient=COEFFICIENT, loss_aggregation="token_mean")
    state, figures = updated(learners, equal)
    assert figures["gradient_norm"] > 0
    assert figures["loss"] == pytest.approx(-COEFFICIENT * figures["entropy"], rel=1e-5)
    _, after = updated(replace(learners), equal, state=state)
    assert after["entropy"] > figures["entropy"]
