"""Whose gradient is not finite, with the gradients faked."""

from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.update.diagnosis import culprits
from rlboost_jax.rewards.verdict import Verdict


@pytest.fixture
def trajectories(groups):
    return [t for group in groups for t in group.trajectories]


def found(trajectories, *bad, where="gradients", value=np.inf):
    """What is said where the gradients of these samples are not finite."""

    def gradients(members):
        assert members
        spoilt = value if any(t.sample in bad for t in members) else 1.0
        of = {"gradients": 1.0, "loss": 1.0, where: spoilt}
        return {"w": np.array([of["gradients"]])}, {"loss": np.float32(of["loss"])}

    return culprits(trajectories, gradients, micro_batch_prompts=2)


@pytest.mark.parametrize("where", ["gradients", "loss"])
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_bad_samples_are_found(trajectories, where, value):
    said = found(trajectories, 2, 17, where=where, value=value)
    lengths = [trajectories[sample].sequence.num_sampled for sample in (2, 17)]
    assert said.startswith("micro-batches 0, 2 of 3: sample 2 (prompt 0, ")
    assert f"sample 17 (prompt 5, {lengths[1]} tokens, reward " in said
    assert said.count("sample") == 2


def test_prompts_that_were_passed_over_are_no_matter(trajectories):
    kept = [t for t in trajectories if t.prompt not in (0, 1, 4)]
    assert found(kept, 17).startswith("micro-batches 2 of 3: sample 17 (prompt 5, ")


def test_many_are_counted(trajectories):
    said = found(trajectories, *range(6))
    assert said.startswith("micro-batches 0 of 3: ")
    assert said.count("(prompt") == 4 and said.endswith(" and 2 more")


def test_a_sum_that_overflows_is_distinguished_from_bad_samples(trajectories):
    assert found(trajectories) == "each micro-batch by itself is finite, their sum is not"


def test_a_reward_that_is_no_number_is_blamed_first(trajectories):
    trajectories[4] = replace(trajectories[4], verdict=Verdict(reward=float("nan")))
    said = found(trajectories, 3, 4, 5)
    assert said.startswith("the reward is not finite of sample 4 (prompt 1, ")
    assert said.count("sample") == 1
