"""Episodes whose environment failed: nobody trains on them, and nothing is compared with them."""

import itertools
import math
from dataclasses import replace

import jax
import numpy as np
import pytest

from rlboost_jax.algorithms.advantages import group_advantages
from rlboost_jax.learner.episodes.estimates import Estimates
from rlboost_jax.learner.episodes.trajectory import Group
from rlboost_jax.learner.packing import pack, update_divisor
from rlboost_jax.learner.step_metrics import episode_metrics, policy_metrics
from rlboost_jax.learner.stream.dynamic_sampling import dynamic_sampling
from rlboost_jax.learner.stream.micro_batches import MicroBatches
from rlboost_jax.learner.stream.step_stream import StepStream
from rlboost_jax.rewards.verdict import Account, CallMade, Verdict
from rlboost_jax.settings.presets import PRESETS
from tests.learner.episodes.test_estimates import MOST, STOP, trajectory
from tests.learner.episodes.test_turn_advantages import episode
from tests.learner.programs.test_policy import everything
from tests.learner.test_step_metrics import FIGURES
from tests.learner.update.test_batch import batch_of, build, updated

__all__ = ["build"]  # a fixture
REWARDS = (1.0, 0.0, 0.25, 0.5)


def estimates(**choices):
    algorithm = replace(PRESETS["grpo"], **choices)
    return Estimates(algorithm=algorithm, max_response_tokens=MOST, stop_ids=(STOP,))


def group(left_out):
    return [
        replace(
            trajectory(i, 0.0, 2 + i),
            verdict=Verdict(reward=reward, left_out="its tool is gone" if i in left_out else ""),
        )
        for i, reward in enumerate(REWARDS)
    ]


@pytest.mark.parametrize("advantage", ["group_std", "group_mean", "leave_one_out", "pass_at_k"])
def test_the_others_are_a_group_without_it(advantage):
    """The rest may have any size: one alone, or none, learns nothing."""
    for size in range(5):
        for left_out in itertools.combinations(range(4), size):
            found = estimates(advantage=advantage).of_group(group(left_out))
            rest = [i for i in range(4) if i not in left_out]
            rewards = np.array([REWARDS[i] for i in rest])
            expected = (
                group_advantages(rewards, advantage=advantage)
                if len(rest) > 1
                else np.zeros(len(rest))
            )
            assert [found[i].advantage for i in rest] == pytest.approx(list(expected), abs=1e-12)
            assert all(found[i].advantage == 0 and not found[i].trained for i in left_out)
            assert all(found[i].trained for i in rest)


def test_it_is_packed_without_weight_and_counts_in_no_divisor():
    members = estimates().of_group(group((1,)))
    for aggregation in ("token_mean", "sequence_mean", "sequence_sum"):
        (batch,) = pack(members, rows=1, row_tokens=64, loss_aggregation=aggregation)
        assert (batch.weights[batch.samples == 1] == 0).all()
        assert all((batch.weights[batch.samples == i] > 0).all() for i in (0, 2, 3))
        expected = 2 + 4 + 5 if aggregation == "token_mean" else 3
        assert update_divisor(members, aggregation) == expected


def test_it_has_no_part_in_the_mean_of_a_batch():
    """Nor in its deviation: whitened, the others are as they are without it."""
    chosen = estimates(advantage="group_mean", whiten=True)
    members = chosen.of_group(group((1,)))
    found = chosen.of_batch(members)
    without = chosen.of_batch([t for t in members if not t.left_out])
    for t, other in zip([t for t in found if not t.left_out], without, strict=True):
        np.testing.assert_array_equal(t.advantages, other.advantages)
    everyone = np.concatenate([t.advantages for t in without])
    assert everyone.mean() == pytest.approx(0, abs=1e-6) and everyone.std() == pytest.approx(1)
    assert chosen.of_batch(chosen.of_group(group(range(4))))[0].advantages is None


@pytest.mark.parametrize(
    ("name", "choices"),
    [("grpo", {}), ("ppo", {}), ("grpo", {"mini_batches": 2, "kl_coefficient": 0.1})],
)
def test_no_bit_of_an_update_knows_its_reward_or_when_it_came(build, groups, name, choices):
    learners = build(name, **choices)

    def without(reward):
        members = [
            replace(
                each,
                trajectories=tuple(
                    replace(t, verdict=Verdict(reward=reward, left_out="gone"))
                    if t.sample in (1, 7)
                    else t
                    for t in each.trajectories
                ),
            )
            for each in groups
        ]
        return tuple(members)

    state, _ = updated(learners, without(0.0))
    other, _ = updated(learners, without(100.0), order=[3, 1, 0, 2])
    for left, right in zip(*map(jax.tree.leaves, (state, other)), strict=True):
        np.testing.assert_array_equal(left, right)
    known, _ = updated(learners, groups)
    pairs = zip(*map(jax.tree.leaves, (state.params, known.params)), strict=True)
    assert any((np.asarray(left) != np.asarray(right)).any() for left, right in pairs)


def test_a_batch_of_nothing_else_leaves_the_policy_as_it_is(build, groups):
    """But for what an optimizer does without a gradient: its step counts."""
    learners = build("grpo")
    lost = tuple(
        replace(
            each,
            trajectories=tuple(
                replace(t, verdict=Verdict(reward=t.reward, left_out="gone"))
                for t in each.trajectories
            ),
        )
        for each in groups
    )
    state, figures = updated(learners, lost)
    assert (figures["loss"], figures["gradient_norm"]) == (0, 0) and int(state.step) == 1
    trajectories = everything(batch_of(learners, lost))
    row = policy_metrics(trajectories, FIGURES, stop_ids=(STOP,))
    assert row["reward_mean"] is row["reward_std"] is row["uniform_groups_fraction"] is None
    assert row["response_tokens"] == sum(t.num_sampled for t in trajectories)


def test_a_group_that_differs_by_it_alone_teaches_nothing(config):
    """Dynamic sampling goes on to the next prompt; with turns, theirs are looked at as well."""
    same = [replace(t, verdict=Verdict(reward=0.5)) for t in group(())]
    odd = [replace(same[0], verdict=Verdict(reward=9.0, left_out="gone")), *same[1:]]
    by_turn = [episode(0, (0.5, 0.0)), *(episode(i, (0.0, 0.5)) for i in (1, 2, 3))]
    for members, compares_turns, wanted in (
        (odd, False, True),
        (by_turn, False, True),
        (by_turn, True, False),
    ):
        algorithm = replace(
            PRESETS["dapo"], turn_advantages="turn" if compares_turns else "episode"
        )
        learner = replace(config.learner, prompts_per_step=1)
        sampling = dynamic_sampling(replace(config, algorithm=algorithm, learner=learner))
        stream = StepStream(
            0, group_size=4, micro_batches=MicroBatches(1, 1, True), sampling=sampling
        )
        stream.begin()
        asked = stream.checked(Group(prompt=0, trajectories=tuple(members)))
        assert bool(asked) == wanted


def test_rows_count_it_and_what_environments_reported():
    def report(t, calls, seconds, metrics):
        made = [CallMade(turn=0, name="add", failed=failed) for failed in calls]
        account = Account(calls=tuple(made), seconds=seconds, tokens_retokenised=1, metrics=metrics)
        return replace(t, verdict=replace(t.verdict, account=account))

    first, second, third, _ = group((2,))
    members = [
        report(first, [False, True], 1.5, {"solved": 1.0}),
        report(second, [], 0.25, {"solved": 0.0, "steps": 3.0}),
        report(third, [True], 0.5, {"solved": 100.0}),
    ]
    row = episode_metrics(members)
    assert row == {
        "turns_mean": 1,
        "sequences_mean": 1,
        "tool_calls": 3,
        "tool_failures": 2,
        "environment_seconds": 2.25,
        "tokens_retokenised": 3,
        "environment/solved": 0.5,
        "environment/steps": 3.0,
    }
    rewards = policy_metrics(members, FIGURES, stop_ids=(STOP,))
    assert (rewards["reward_mean"], rewards["reward_std"]) == (0.5, 0.5)
    assert rewards["episodes_left_out"] == 1
    assert not any(math.isnan(value) for value in rewards.values() if isinstance(value, float))
