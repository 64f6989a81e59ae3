from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.algorithms.advantages import STD_FLOOR
from rlboost_jax.data.stop_strings import StopStrings
from rlboost_jax.learner.episodes.estimates import Estimates, ResponseScores
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.step_metrics import policy_metrics
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.presets import PRESETS
from tests.learner.test_step_metrics import FIGURES
from tests.sequences.given import with_given

MOST, STOP = 10, 1


def trajectory(sample, reward, length, last=STOP):
    return Trajectory(
        prompt=0,
        sample=sample,
        sequence=Sequence.of_response(
            [2], [5] * (length - 1) + [last], np.full(length, -1.0), version=0
        ),
        verdict=Verdict(reward=reward),
        advantage=0.0,
    )


def estimates(name, **choices):
    algorithm = replace(PRESETS[name], **choices)
    return Estimates(algorithm=algorithm, max_response_tokens=MOST, stop_ids=(STOP,))


GROUP = [trajectory(0, 1.0, 2), trajectory(1, 0.0, 10), trajectory(2, 0.0, 3)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("grpo", np.array([2 / 3, -1 / 3, -1 / 3]) / (2**0.5 / 3 + STD_FLOOR)),
        ("dr_grpo", [2 / 3, -1 / 3, -1 / 3]),
        ("rloo", [1.0, -0.5, -0.5]),
    ],
)
def test_advantages_of_a_group_by_its_rewards(name, expected):
    found = estimates(name, kl_coefficient=0.0).of_group(GROUP)
    np.testing.assert_allclose([t.advantage for t in found], expected)
    assert [t.reward for t in found] == [1.0, 0.0, 0.0]


def test_overlong_shaping_changes_advantages_and_not_the_reward_that_is_reported():
    found = estimates("dr_grpo", overlong_penalty=0.6, overlong_band=0.5).of_group(GROUP)
    shaped = np.array([1.0, -0.6, 0.0])
    np.testing.assert_allclose([t.advantage for t in found], shaped - shaped.mean())
    assert [t.reward for t in found] == [1.0, 0.0, 0.0]


def test_the_trap_of_overlong_filtering_what_is_cut_off_still_counts_in_the_mean():
    """And only what was cut off: a response that ends with the last token it may have is whole."""
    group = [*GROUP, trajectory(3, 1.0, 10, last=5)]
    found = estimates("dr_grpo", overlong_filter=True).of_group(group)
    assert [t.trained for t in found] == [True, True, True, False]


def test_what_a_stop_string_ends_is_not_cut_off():
    """The string of the newest turn: none of two turns, and none that was given."""
    stops = StopStrings(("xyz",), (b"", b"", b"x", b"y", b"z", b"?", b"yz!")).table
    ended, cut_off = [5, 2, 3, 4], [5, 2, 3, 5]
    group = [
        replace(GROUP[0], sample=sample, sequence=sampled(turns))
        for sample, turns in enumerate(
            ([ended], [[5, 2, 6]], [cut_off], [[2], [3, 4]], [[5], ended])
        )
    ]
    whole = replace(estimates("dr_grpo", overlong_filter=True), stops=stops)
    assert [t.trained for t in whole.of_group(group)] == [True, True, False, False, True]
    row = policy_metrics(group, FIGURES, stop_ids=(STOP,), stops=stops)
    assert row["truncated_fraction"] == 2 / 5


def sampled(turns):
    """A sequence of turns, each after the first behind the token 2."""
    sequence = Sequence.of_prompt([2])
    for number, turn in enumerate(turns):
        before = with_given(sequence, [2]) if number else sequence
        sequence = before.with_sampled(turn, np.full(len(turn), -1.0), version=0)
    return sequence
    assert [t.advantage for t in found] == [0.5, -0.5, -0.5, 0.5]
    assert all(t.trained for t in estimates("dr_grpo").of_group(group))


def evaluations(*, values=False):
    """d = reference - policy is -0.5 for each token; the critic expects 0.25 everywhere."""
    return ResponseScores(
        policy={t.sample: np.full(t.sequence.num_sampled, -1.25, np.float32) for t in GROUP},
        whole={t.sample: np.full(t.sequence.num_sampled, -1.0, np.float32) for t in GROUP},
        reference={t.sample: np.full(t.sequence.num_sampled, -1.5, np.float32) for t in GROUP},
        values={t.sample: np.full(t.sequence.num_sampled, 0.25, np.float32) for t in GROUP}
        if values
        else {},
    )


def test_a_kl_in_the_reward_of_a_whole_response():
    """k1 is 0.5 nats a token: RLOO compares 1 - 2 x 0.05, 0 - 10 x 0.05 and 0 - 3 x 0.05."""
    rloo = estimates("rloo", kl_coefficient=0.1)
    assert not rloo.by_rewards_alone
    assert [t.advantage for t in rloo.of_group(GROUP)] == [0.0, 0.0, 0.0], "not known yet"
    found = rloo.evaluated(GROUP, evaluations())
    expected = [0.9 - (-0.5 - 0.15) / 2, -0.5 - (0.9 - 0.15) / 2, -0.15 - (0.9 - 0.5) / 2]
    np.testing.assert_allclose([t.advantage for t in found], expected)
    assert rloo.kl_of(GROUP[1], evaluations()) == pytest.approx(5.0)
    np.testing.assert_allclose(found[0].old_logprobs, [-1.25, -1.25])


def test_a_kl_in_the_reward_of_each_token():
    """REINFORCE++: what comes after a token counts, what came before it does not."""
    plus = estimates("reinforce_pp", kl_coefficient=0.1, discount=0.5)
    found = plus.evaluated(GROUP, evaluations())
    np.testing.assert_allclose(found[0].advantages, [-0.05 + 0.5 * 0.95, 0.95], rtol=1e-6)
    np.testing.assert_allclose(found[2].advantages, [-0.05 * 1.75, -0.05 * 1.5, -0.05], rtol=1e-6)


def test_a_critic_sees_rewards_token_by_token():
    found = estimates("ppo", gae_lambda=1.0).evaluated(GROUP, evaluations(values=True))
    np.testing.assert_allclose(found[0].advantages, [0.75, 0.75])
    np.testing.assert_allclose(found[0].returns, [1.0, 1.0])
    np.testing.assert_allclose(found[2].advantages, [-0.25] * 3)
    np.testing.assert_allclose(found[2].old_values, [0.25] * 3)


def test_without_a_look_there_is_no_critic():
    with pytest.raises(ValueError, match="sample 0 has no values of the critic"):
        estimates("ppo").evaluated(GROUP, evaluations())


def test_whitening_is_of_the_batch_and_by_token():
    """REINFORCE++-baseline: differences from the group's mean, then of 15 tokens together."""
    baseline = estimates("reinforce_pp_baseline")
    found = baseline.of_batch(baseline.of_group(GROUP))
    tokens = np.array([2 / 3] * 2 + [-1 / 3] * 13)
    expected = (tokens - tokens.mean()) / np.sqrt(tokens.var() + 1e-8)
    np.testing.assert_allclose(np.concatenate([t.advantages for t in found]), expected, rtol=1e-6)
    plain = estimates("grpo")
    assert plain.of_batch(GROUP) == tuple(GROUP)
