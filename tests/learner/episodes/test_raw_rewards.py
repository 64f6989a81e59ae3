"""A group, or a batch, of equal raw rewards teaches nothing, whatever shapes its rewards."""

from copy import copy
from dataclasses import replace
from typing import get_args

import jax
import numpy as np
import pytest

from rlboost_jax.algorithms.advantages import STD_FLOOR, differ, group_advantages
from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.raw_rewards import informative
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.step_metrics import policy_metrics
from rlboost_jax.learner.stream.dynamic_sampling import DynamicSampling, dynamic_sampling
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.learner.update.batch import BatchUpdate
from rlboost_jax.models.params import params_digest
from rlboost_jax.rewards.verdict import Verdict
from rlboost_jax.settings.algorithm_config import TokenAdvantage
from rlboost_jax.settings.presets import PRESETS
from rlboost_jax.settings.validation.algorithm_checks import algorithm_mistakes
from tests.learner.episodes.test_estimates import MOST, STOP, trajectory
from tests.learner.episodes.test_turn_advantages import episode
from tests.learner.test_step_metrics import FIGURES
from tests.learner.update.test_batch import PROMPTS, STEP, batch_of, build, fresh, updated

__all__ = ["build"]  # a fixture
SHAPING = {
    "overlong_penalty": 1.0,
    "overlong_band": 0.9,
    "overlong_filter": False,
    "kl_coefficient": 0.1,
    "kl_placement": "reward",
    "kl_estimator": "k1",
    "discount": 0.9,
}


def estimates(name="grpo", **choices):
    algorithm = replace(PRESETS[name], **{"kl_coefficient": 0.0, **choices})
    return Estimates(algorithm=algorithm, max_response_tokens=MOST, stop_ids=(STOP,))


def rewarded(groups, reward_of):
    return tuple(
        replace(
            g,
            trajectories=tuple(
                replace(t, verdict=Verdict(reward=reward_of(t.sample))) for t in g.trajectories
            ),
        )
        for g in groups
    )


@pytest.mark.parametrize("name", PRESETS)
def test_the_gradient_of_a_batch_of_equal_rewards_is_exactly_0(build, groups, name):
    """It is so for every algorithm, with all that may shape a reward.

    Responses have 1 to 20 of 24 tokens. One reward that differs brings a gradient back.
    """
    learners = build(name, **SHAPING)
    assert not list(algorithm_mistakes(learners.run))
    policy = copy(learners.policy)
    policy.logprobs = build("grpo", **SHAPING).policy.logprobs  # compiled once
    learners = replace(learners, policy=policy)
    state = fresh(learners)

    def gradient(reward_of):
        """Each entry of it, and of the loss."""
        batch = batch_of(learners, rewarded(groups, reward_of))
        members, _, _ = learners.score(state, batch)
        gradients, sums = learners.policy_part(state.params, learners.estimates.of_batch(members))
        return [np.asarray(leaf) for leaf in jax.tree.leaves((gradients, sums["loss"]))]

    assert not any(leaf.any() for leaf in gradient(lambda sample: (0.1 + 0.2, 0.3)[sample % 2]))
    assert all(leaf.any() for leaf in gradient(lambda sample: float(sample == 4)))


@pytest.mark.parametrize("advantage", ["group_std", "group_mean", "leave_one_out", "pass_at_k"])
def test_a_group_is_compared_by_shaped_rewards_only_if_its_raw_ones_differ(advantage):
    """A penalty of 1 for the longest, by hand."""
    lengths, penalties = (2, 10, 3), np.array([0.0, 1.0, 0.0])
    chosen = estimates(advantage=advantage, overlong_penalty=1.0, overlong_band=0.2)
    for rewards in ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), (0.3, 0.1 + 0.2, 0.3)):
        group = [trajectory(i, r, n) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]
        assert [t.advantage for t in chosen.of_group(group)] == [0.0, 0.0, 0.0]
    rewards = np.array([1.0, 1.0, 0.0])
    group = [trajectory(i, r, n) for i, (r, n) in enumerate(zip(rewards, lengths, strict=True))]
    found = [t.advantage for t in chosen.of_group(group)]
    shaped = rewards - penalties
    expected = {
        "group_std": (shaped - shaped.mean()) / (shaped.std() + STD_FLOOR),
        "group_mean": shaped - shaped.mean(),
        "leave_one_out": shaped - (shaped.sum() - shaped) / 2,
        "pass_at_k": np.zeros(3),  # two of them are right: neither adds to the best of three
    }[advantage]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("by", ["turn", "both"])
def test_turns_are_compared_by_shaped_rewards_only_if_their_raw_ones_differ(by):
    """The longest is punished, at its last turn."""
    chosen = estimates(turn_advantages=by, overlong_penalty=1.0, overlong_band=1.0)
    equal = [episode(0, (0.5, 0.0)), episode(1, (0.5, 0.0, 0.0)), episode(2, (0.5,))]
    assert all((t.advantages == 0).all() for t in chosen.of_group(equal))
    other = [equal[0], equal[1], episode(2, (0.25, 0.25))]
    first, second, third = (t.advantages for t in chosen.of_group(other))
    assert first[0] == second[0] == third[0] == 0, "as much from the first turn on"
    assert third[-1] > first[-1] > second[1] and second[-1] == 0, "of third turns there is one"


@pytest.mark.parametrize("name", ["reinforce_pp", "ppo"])
@pytest.mark.parametrize("whiten", [True, False])
def test_a_batch_of_equal_rewards_has_advantages_of_0_and_returns_for_the_critic(name, whiten):
    chosen = estimates(name, overlong_penalty=1.0, discount=0.5, whiten=whiten)
    members = [
        replace(
            trajectory(i, 1.0, length),
            advantages=np.full(length, float(i), np.float32),
            returns=np.full(length, 0.5, np.float32),
        )
        for i, length in enumerate((2, 10, 3))
    ]
    found = chosen.of_batch(members)
    compares = whiten or name == "ppo"
    assert all((t.advantages == 0).all() for t in found) == compares
    assert all((t.returns == 0.5).all() for t in found)
    members[2] = replace(members[2], verdict=Verdict(reward=0.0))
    assert any((t.advantages != 0).any() for t in chosen.of_batch(members))


def test_the_same_reward_in_another_turn_is_no_equal_reward():
    chosen = estimates("reinforce_pp")
    members = chosen.of_group([episode(0, (1.0, 0.0)), episode(1, (0.0, 1.0))])
    assert any((t.advantages != 0).any() for t in chosen.of_batch(members))
    members = chosen.of_group([episode(0, (1.0, 0.0)), episode(1, (1.0, 0.0, 0.0))])
    assert all((t.advantages == 0).all() for t in chosen.of_batch(members))


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((0.1 + 0.2, 0.3), False),
        ((0.1 + 0.2 - 0.3, 0.0), False),
        ((1e6 + 0.1 + 0.2, 1e6 + 0.3), False),
        ((1 / 3 + 1 / 3 + 1 / 3, 1.0), False),
        ((sum([0.1] * 10), 1.0), False),
        ((-0.7 * 0.1, -0.07), False),
        ((0.0, -0.0), False),
        ((0.3,), False),
        ((), False),
        ((0.3, 0.3 + 1e-6), True),
        ((1e-5, 2e-5), True),
        ((1e6, 1e6 + 1), True),
        ((-1.0, 1.0), True),
        ((float("nan"), 0.0), True),
        ((float("inf"), float("inf")), True),
    ],
)
def test_sums_that_differ_by_rounding_are_equal(rewards, expected):
    """To selection and advantages and metrics alike; what is not finite is not passed over."""
    assert differ(np.array(rewards)) == expected
    members = [trajectory(i, reward, 2) for i, reward in enumerate(rewards)]
    assert informative(members, PRESETS["dapo"]) == expected
    if np.isfinite(rewards).all():
        found = group_advantages(np.array(rewards, float), advantage="group_std")
        assert bool(np.any(found != 0)) == expected
    if len(rewards) > 1 and np.isfinite(rewards).all():
        row = policy_metrics(members, FIGURES, stop_ids=(STOP,))
        assert row["uniform_groups_fraction"] == float(not expected)


RIGHT, FORMAT = 1.0, 0.2  # of two reward functions, the first of which is right or wrong


@pytest.mark.parametrize(
    ("outcomes", "bonuses", "by_function", "by_sum"),
    [
        ((0.0, 0.0), (0.0, FORMAT), False, True),  # all wrong
        ((RIGHT, RIGHT), (0.0, FORMAT), False, True),
        ((RIGHT, 0.0), (0.0, FORMAT), True, True),
        ((RIGHT, 0.0), (0.0, RIGHT), False, False),  # nothing to compare in the sum
        ((RIGHT, 0.0), (0.0, 0.0), True, True),
        ((None, None), (0.0, FORMAT), True, True),  # the first says nothing about any
        ((None, 0.0), (0.0, FORMAT), False, True),
        ((None, 0.0, RIGHT), (0.0, 0.0, 0.0), True, True),
    ],
)
def test_what_dynamic_sampling_compares(outcomes, bonuses, by_function, by_sum):
    members = [
        replace(
            trajectory(i, 0.0, 2), verdict=Verdict(reward=(outcome or 0.0) + bonus, outcome=outcome)
        )
        for i, (outcome, bonus) in enumerate(zip(outcomes, bonuses, strict=True))
    ]
    algorithm = PRESETS["dapo"]
    assert algorithm.dynamic_sampling_by == "first_function"
    assert informative(members, algorithm) == by_function
    assert informative(members, replace(algorithm, dynamic_sampling_by="reward")) == by_sum


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1.0, 0.0, 0.0), True),
        ((1.0, 1.0, 0.0), False),  # the best of three is as good without either
        ((0.3, 0.1 + 0.2, 0.0), False),
        ((0.5, 0.25, 0.25), True),
        ((1.0, 1.0, 1.0), False),
        ((-1.0, -0.5, -0.5), False),
    ],
)
def test_by_pass_at_k_a_group_teaches_if_one_response_is_the_best(rewards, expected):
    algorithm = replace(PRESETS["dapo"], advantage="pass_at_k", overlong_penalty=0.0)
    members = [trajectory(i, reward, 2) for i, reward in enumerate(rewards)]
    assert informative(members, algorithm) == expected
    found = replace(estimates(), algorithm=algorithm).of_group(members)
    assert any(t.advantage != 0 for t in found) == expected, "and is trained so"


def test_a_group_that_is_filtered_as_a_whole_is_passed_over():
    """All of it was cut off: it would be taken, and nothing of it be trained."""
    algorithm = replace(PRESETS["dapo"], overlong_filter=True)
    chosen = replace(estimates(), algorithm=algorithm)
    for endings, expected in (((5, 5), False), ((5, STOP), True)):
        members = [trajectory(i, float(i), MOST, last=end) for i, end in enumerate(endings)]
        assert informative(chosen.of_group(members), algorithm) == expected


def test_turns_are_looked_at_where_they_are_compared():
    moved = [episode(0, (1.0, 0.0)), episode(1, (0.0, 1.0))]
    later = [episode(0, (0.0, 1.0)), episode(1, (0.0, 0.0, 1.0))]
    dapo = PRESETS["dapo"]
    for group, turn, discount, expected in (
        (moved, "episode", 1.0, False),
        (moved, "turn", 1.0, True),
        (moved, "both", 1.0, True),
        (later, "turn", 1.0, False),  # the same from each turn on
        (later, "turn", 0.9, True),  # a reward a turn later is worth less
    ):
        algorithm = replace(dapo, turn_advantages=turn, turn_discount=discount)
        assert informative(group, algorithm) == expected
        chosen = replace(estimates(), algorithm=replace(algorithm, overlong_penalty=0.0))
        found = chosen.of_group(group)
        advantages = [t.advantage if t.advantages is None else t.advantages for t in found]
        assert any(np.any(value != 0) for value in advantages) == expected, "and are trained so"


def streamed(learners, groups, num_groups):
    """A stream with dynamic sampling over the groups, whose batch has no more than these."""
    sampling = DynamicSampling(num_groups=num_groups, most_prompts=len(groups))
    stream = StepStream(
        STEP,
        group_size=3,
        micro_batches=MicroBatches(num_groups, 1, True),
        sampling=sampling,
    )
    stream.begin()
    for group in groups:
        stream.checked(group)
    return stream


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("grpo", {"kl_coefficient": 0.3, "entropy_coefficient": 0.1}),
        *((name, SHAPING) for name in ("dapo", "reinforce_pp", "reinforce_pp_baseline", "ppo")),
    ],
)
def test_what_fills_a_batch_up_leaves_no_trace_in_its_update(build, groups, name, choices):
    """Two groups with two others of equal rewards make the update that they make by themselves:
    the same bits of policy and critic, with divisors, whitening and regularizers."""
    both = build(name, **choices)
    learner = replace(both.run.learner, prompts_per_step=2)
    alone = replace(both, run=replace(both.run, learner=learner))
    assert PROMPTS == 4
    given = rewarded(groups[:2], lambda sample: float(sample % 3 == 0)) + rewarded(
        groups[2:4], lambda sample: 1.0
    )
    batch = batch_of(both, given)
    stream = streamed(both, batch, PROMPTS)
    members = {group.prompt: group for group in batch}
    assert list(stream.members) == list(members), "the two that teach, and then the others"
    state = fresh(both)
    updates = BatchUpdate(both, state, step=STEP, checkpoint=lambda: None)
    trajectories = stream.trajectories()
    assert [t.fills_up for t in trajectories] == [False] * 6 + [True] * 6
    for prompt in members:
        found = Group(
            prompt=prompt, trajectories=tuple(t for t in trajectories if t.prompt == prompt)
        )
        for index, ready in updates.micro_batches.add(found):
            assert updates.train(index, ready) == []
    state, figures = updates.finish(trajectories, prompts=range(PROMPTS), host_params=None)
    expected, by_themselves = updated(alone, batch)
    assert params_digest(state.params) == params_digest(expected.params)
    assert figures["gradient_norm"] == by_themselves["gradient_norm"] > 0
    assert figures["loss"] == by_themselves["loss"]
    if state.critic is not None:
        assert params_digest(state.critic.params) == params_digest(expected.critic.params)
    row = policy_metrics(trajectories, FIGURES, stop_ids=(STOP,))
    assert row["groups_filled_up"] == 2
    assert not any(t.trained or t.advantage for t in updates.trajectories() if t.fills_up)


def test_a_batch_of_nothing_but_filling_leaves_the_policy_as_it_is(build, groups):
    learners = build("dapo", **SHAPING)
    stream = streamed(learners, batch_of(learners, rewarded(groups, lambda sample: 0.0)), PROMPTS)
    trajectories = stream.trajectories()
    assert all(t.fills_up for t in trajectories)
    updates = BatchUpdate(learners, fresh(learners), step=STEP, checkpoint=lambda: None)
    for prompt in range(PROMPTS):
        members = tuple(t for t in trajectories if t.prompt == prompt)
        for index, ready in updates.micro_batches.add(Group(prompt=prompt, trajectories=members)):
            assert updates.train(index, ready) == []
    _, figures = updates.finish(trajectories, prompts=range(PROMPTS), host_params=None)
    assert (figures["gradient_norm"], figures["loss"]) == (0, 0)


def test_a_run_compares_as_its_algorithm_says(config):
    run = replace(config, algorithm=replace(PRESETS["dapo"], dynamic_sampling_by="reward"))
    members = [
        replace(trajectory(i, 0.0, 2), verdict=Verdict(reward=float(i), outcome=0.0))
        for i in range(2)
    ]
    assert dynamic_sampling(run).informative(members)
    assert not dynamic_sampling(replace(config, algorithm=PRESETS["dapo"])).informative(members)
    assert set(get_args(TokenAdvantage)) == {"return", "gae"}
