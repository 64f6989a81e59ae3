"""What an update must be to be applied."""

from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.guards import (
    GuardTripped,
    StepNotWhole,
    check_counted,
    check_guards,
    check_whole,
)
from rlboost_jax.sequences.sequence import Sequence
from tests.learner.conftest import GROUP_SIZE

STEP = 3  # the version of the trajectories in `groups`


def whole(trajectories, num_prompts=6):
    check_whole(
        trajectories,
        step=STEP + 1,  # a batch's number is not that of the version that sampled it
        version=STEP,
        prompts=range(num_prompts),
        group_size=GROUP_SIZE,
    )


@pytest.fixture
def trajectories(groups):
    return [t for group in groups for t in group.trajectories]


def test_each_sample_once_is_a_whole_step(trajectories):
    whole(trajectories)
    whole(trajectories[::-1])


def test_what_is_wrong_is_named(trajectories):
    with pytest.raises(StepNotWhole, match=r"6 x 3 samples cannot be applied: missing: sample 4$"):
        whole(trajectories[:4] + trajectories[5:])
    with pytest.raises(StepNotWhole, match=r": twice or more: sample 7$"):
        whole([*trajectories, trajectories[7]])
    with pytest.raises(StepNotWhole, match="missing: sample 2; twice or more: sample 1"):
        whole([*trajectories[:2], trajectories[1], *trajectories[3:]])
    with pytest.raises(StepNotWhole, match=r"foreign: samples 15, 16, 17$"):
        whole(trajectories, num_prompts=5)
    with pytest.raises(StepNotWhole, match=r"missing: samples 0, 1, 2, 3 and 14 more$"):
        whole([])
    strange = replace(trajectories[5], prompt=trajectories[5].prompt + 1)
    with pytest.raises(StepNotWhole, match=r"missing: sample 5; foreign: sample 5$"):
        whole([*trajectories[:5], strange, *trajectories[6:]])


def test_one_token_of_another_version_is_enough(trajectories):
    *_, last = sequence = trajectories[5].sequence.continuation
    made = Sequence.of_response([1], sequence[:-1], np.zeros(len(sequence) - 1), version=STEP)
    made = made.with_sampled([last], [0.0], version=STEP - 1)
    trajectories[5] = replace(trajectories[5], sequence=made)
    with pytest.raises(StepNotWhole, match=r"of another version: sample 5$"):
        whole(trajectories)


def test_gradients_are_of_just_the_tokens_of_the_samples(trajectories):
    expected = sum(t.sequence.num_sampled for t in trajectories)
    check_counted(trajectories, float(np.float32(expected)), step=STEP)
    for tokens in (expected - 1.0, expected + 1.0, float("nan")):
        with pytest.raises(StepNotWhole, match=f"its samples have {expected}"):
            check_counted(trajectories, tokens, step=STEP)


@pytest.mark.parametrize("name", ["gradient_norm", "kl"])
def test_a_guard_stops_what_is_beyond_it(config, name):
    def check(value, guard):
        learner = replace(config.learner, **{f"guard_{name}": guard})
        check_guards(learner, {name: value}, step=8, checkpoint=lambda: 7)

    check(2.0, 2.0)
    check(1e9, 0.0)  # off
    with pytest.raises(GuardTripped, match=rf"step 8: {name} is 2\.01, learner.guard_{name} .* 2;"):
        check(2.01, 2.0)


def test_where_there_is_no_checkpoint_none_is_named(config):
    learner = replace(config.learner, guard_kl=0.1)
    with pytest.raises(GuardTripped, match="there is no checkpoint yet"):
        check_guards(learner, {"kl": 0.2}, step=0, checkpoint=lambda: None)
