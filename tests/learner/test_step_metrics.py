"""Rows against counts by hand."""

from collections import defaultdict

import numpy as np

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.step_metrics import policy_metrics
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.sequence import Sequence

STOP = 1
FIGURES = defaultdict(float, gradient_norm=2.5, learning_rate=3e-4)


def trajectory(prompt, sample, tokens, reward):
    sequence = Sequence.of_response([7, 8], tokens, np.full(len(tokens), -1.0), version=0)
    return Trajectory(
        prompt=prompt,
        sample=sample,
        sequence=sequence,
        verdict=Verdict(reward=reward),
        advantage=0.0,
    )


def test_shares_of_a_batch():
    """Two of three groups teach a comparison nothing, and one response of six was cut off."""
    batch = [
        trajectory(0, 0, [5, STOP], 1.0),
        trajectory(0, 1, [5, 6, STOP], 1.0),
        trajectory(4, 2, [5, 6, 7, 5], 0.0),
        trajectory(4, 3, [STOP], 0.5),
        trajectory(9, 4, [5, STOP], 0.0),
        trajectory(9, 5, [6, STOP], 0.0),
    ]
    row = policy_metrics(batch, FIGURES, stop_ids=(STOP,))
    assert row["truncated_fraction"] == 1 / 6
    assert row["uniform_groups_fraction"] == 2 / 3
    assert (row["gradient_norm"], row["learning_rate"]) == (2.5, 3e-4)
    assert row["response_length_max"] == 4


def test_one_response_a_prompt_is_no_group():
    batch = [trajectory(0, 0, [STOP], 1.0), trajectory(1, 1, [STOP], 0.0)]
    assert policy_metrics(batch, FIGURES, stop_ids=(STOP,))["uniform_groups_fraction"] is None
