"""Advantages turn by turn, against loops over turns in plain floats."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlboost_jax.algorithms.advantages import STD_FLOOR
from rlboost_jax.learner.episodes.estimates import Estimates, ResponseScores
from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.sequences.sequence import Sequence
from rlboost_jax.settings.presets import PRESETS
from tests.sequences.given import with_given

STOP = 1
RIDDLE = ((0.0, 0.5, 1.0), (0.0, -0.25), (1.0,))  # rewards of turns of three episodes


def episode(sample, rewards, *, lengths=None, split=None, reward=None):
    """Each turn one token longer than the one before; the turns from `split` on are of another
    sequence."""
    lengths = lengths or [turn + 1 for turn in range(len(rewards))]
    sequences = [Sequence.of_prompt([2])]
    for turn, length in enumerate(lengths):
        if turn == split:
            sequences.append(Sequence.of_prompt([3]))
        if sequences[-1].num_sampled:
            sequences[-1] = with_given(sequences[-1], [4])
        tokens = [5] * (length - 1) + [STOP]
        sequences[-1] = sequences[-1].with_sampled(tokens, np.full(length, -1.0), version=0)
    first, *later = sequences
    return Trajectory(
        prompt=0,
        sample=sample,
        sequence=first,
        later=tuple(later),
        verdict=Verdict(
            reward=sum(rewards) if reward is None else reward, turn_rewards=tuple(rewards)
        ),
        advantage=0.0,
    )


def estimates(name="grpo", **choices):
    algorithm = replace(PRESETS[name], **{"kl_coefficient": 0.0, **choices})
    return Estimates(algorithm=algorithm, max_response_tokens=100, stop_ids=(STOP,))


def returns_by_hand(rewards, discount):
    return [
        sum(discount ** (later - turn) * rewards[later] for later in range(turn, len(rewards)))
        for turn in range(len(rewards))
    ]


def compared_by_hand(values, own, advantage):
    """The advantage of `own` among the values of all episodes that have that turn."""
    if len(values) < 2 or len(set(values)) == 1:
        return 0.0
    mean = sum(values) / len(values)
    if advantage == "leave_one_out":
        return own - (sum(values) - own) / (len(values) - 1)
    if advantage == "group_mean":
        return own - mean
    return (own - mean) / ((sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5 + STD_FLOOR)


def turns_by_hand(group, discount, advantage):
    returns = [returns_by_hand(rewards, discount) for rewards in group]
    return [
        [
            compared_by_hand([r[turn] for r in returns if len(r) > turn], own[turn], advantage)
            for turn in range(len(own))
        ]
        for own in returns
    ]


def by_token(t, values):
    assert len(values) == len(t.turns)
    return [value for value, length in zip(values, t.turns, strict=True) for _ in range(length)]


@given(
    group=st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 1.0, -0.5]), min_size=1, max_size=4),
        min_size=1,
        max_size=5,
    ),
    discount=st.sampled_from([1.0, 0.5]),
    advantage=st.sampled_from(["group_std", "group_mean", "leave_one_out"]),
)
@settings(max_examples=200)
def test_a_turn_is_compared_with_the_same_turn_of_the_others(group, discount, advantage):
    """In which sequence it is does not matter. Powers of two, so that equal returns are equal."""
    members = [episode(i, rewards, split=2 if i % 2 else None) for i, rewards in enumerate(group)]
    chosen = estimates(advantage=advantage, turn_advantages="turn", turn_discount=discount)
    turns = turns_by_hand(group, discount, advantage)
    for t, values in zip(chosen.of_group(members), turns, strict=True):
        np.testing.assert_allclose(t.advantages, by_token(t, values), rtol=1e-5, atol=1e-6)
    both = estimates(advantage=advantage, turn_advantages="both", turn_discount=discount)
    sums = [sum(rewards) for rewards in group]
    for t, values, own in zip(both.of_group(members), turns, sums, strict=True):
        whole = compared_by_hand(sums, own, advantage)
        expected = by_token(t, [value + whole for value in values])
        np.testing.assert_allclose(t.advantages, expected, rtol=1e-5, atol=1e-6)


def test_of_episodes_only_their_sums_count():
    members = [episode(i, rewards) for i, rewards in enumerate(RIDDLE)]
    found = estimates(advantage="group_mean").of_group(members)
    sums = [1.5, -0.25, 1.0]
    assert [t.advantage for t in found] == pytest.approx([s - sum(sums) / 3 for s in sums])
    assert all(t.advantages is None for t in found)


def test_with_one_turn_each_turns_are_episodes():
    members = [episode(i, [reward], lengths=[3]) for i, reward in enumerate([0.0, 1.0, 0.25])]
    whole = estimates().of_group(members)
    for name, factor in (("turn", 1), ("both", 2)):
        for t, other in zip(estimates(turn_advantages=name).of_group(members), whole, strict=True):
            np.testing.assert_allclose(t.advantages, [factor * other.advantage] * 3, rtol=1e-6)


def test_what_is_of_no_turn_is_of_the_last():
    """A reward function beside the environment, or a penalty for length."""
    members = [episode(0, (0.0, 0.5), reward=2.5), episode(1, (0.0, 0.0))]
    found = estimates(advantage="group_mean", turn_advantages="turn").of_group(members)
    np.testing.assert_allclose(found[0].advantages, [1.25, 1.25, 1.25])
    shaped = estimates(
        advantage="group_mean", turn_advantages="turn", overlong_penalty=4.0, overlong_band=1.0
    )
    found = shaped.of_group(members)
    assert found[0].advantages == pytest.approx([1.25] * 3), "both are as long"


def test_an_episode_whose_environment_failed_has_no_turn_to_compare_with():
    members = [episode(i, rewards) for i, rewards in enumerate(RIDDLE)]
    lost = replace(members[1], verdict=Verdict(reward=members[1].reward, left_out="gone"))
    found = estimates(advantage="group_mean", turn_advantages="turn").of_group(
        [members[0], lost, members[2]]
    )
    expected = turns_by_hand([RIDDLE[0], RIDDLE[2]], 1.0, "group_mean")
    np.testing.assert_allclose(found[0].advantages, by_token(members[0], expected[0]), atol=1e-6)
    assert found[1].advantages is None and found[1].advantage == 0 and not found[1].trained
    np.testing.assert_allclose(found[2].advantages, by_token(members[2], expected[1]), atol=1e-6)


def gae_by_hand(rewards, values, discount, gae_lambda):
    advantages = [0.0] * len(values)
    for t in range(len(values)):
        for k in range(t, len(values)):
            following = values[k + 1] if k + 1 < len(values) else 0.0
            surprise = rewards[k] + discount * following - values[k]
            advantages[t] += (discount * gae_lambda) ** (k - t) * surprise
    return advantages


def test_a_critic_hears_of_a_turns_reward_at_its_last_token():
    """And so do returns; whatever `turn_advantages` says, which compares within groups."""
    members = [
        episode(i, rewards, split=1, reward=sum(rewards) + 0.125)
        for i, rewards in enumerate(RIDDLE)
    ]
    rng = np.random.default_rng(0)
    values = {t.sample: rng.normal(size=t.num_sampled).astype(np.float32) for t in members}
    chosen = estimates("ppo", discount=0.9, gae_lambda=0.8)
    plain = estimates("reinforce_pp", discount=0.9)
    returns = plain.of_group(members)
    for t, other, rewards in zip(
        chosen.evaluated(members, ResponseScores(values=values)), returns, RIDDLE, strict=True
    ):
        placed = [0.0] * t.num_sampled
        end = 0
        for turn, reward in enumerate(rewards):
            end += turn + 1
            placed[end - 1] = reward
        placed[-1] += 0.125
        expected = gae_by_hand(placed, values[t.sample].tolist(), 0.9, 0.8)
        np.testing.assert_allclose(t.advantages, expected, rtol=1e-5, atol=1e-6)
        hand = [
            sum(0.9 ** (k - i) * placed[k] for k in range(i, len(placed)))
            for i in range(len(placed))
        ]
        np.testing.assert_allclose(other.advantages, hand, rtol=1e-5, atol=1e-6)


def test_a_kl_in_the_reward_is_of_the_turn_whose_tokens_it_is_of():
    """k1 = 0.5 a token, so turns of 1, 2, … tokens lose 0.5, 1, … of what follows."""
    members = [episode(0, (0.0, 1.0)), episode(1, (0.0, 0.0))]
    chosen = estimates(
        "rloo",
        kl_coefficient=0.25,
        advantage="group_mean",
        turn_advantages="turn",
    )
    whole = {i: np.full(3, -1.0, np.float32) for i in (0, 1)}
    scores = ResponseScores(whole=whole, reference={**whole, 0: np.full(3, -1.5, np.float32)})
    found = chosen.evaluated(members, scores)
    penalty = [0.25 * 0.5 * 3, 0.25 * 0.5 * 2]
    expected = [(1 - penalty[0]) / 2, (1 - penalty[1]) / 2]
    np.testing.assert_allclose(found[0].advantages, by_token(members[0], expected), rtol=1e-6)
