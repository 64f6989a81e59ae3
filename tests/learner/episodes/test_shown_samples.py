from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.data.stop_strings import StopStrings
from rlboost_jax.learner.episodes.shown_samples import reward_parts, sample_rows, samples_due
from rlboost_jax.sequences.sequence import Sequence

STOP = 1


class Words:
    """Reads token 7 as "7"."""

    stop_ids = (STOP,)
    stops = StopStrings(("xy",), (b"", b"", b"x", b"y")).table

    def text(self, tokens):
        return " ".join(map(str, np.asarray(tokens).tolist()))


@pytest.fixture
def trajectories(groups):
    return [t for group in groups for t in group.trajectories]


def test_whole_groups_of_the_first_prompts(trajectories):
    rows = sample_rows(3, trajectories, task=Words(), num_prompts=2)
    places = [(row.prompt, row.sample) for row in rows]
    assert places == [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (1, 5)]
    for row, t in zip(rows, trajectories, strict=False):
        assert row.step == 3
        assert row.prompt_text == " ".join(map(str, t.sequence.prompt))
        assert row.response_text == " ".join(map(str, t.sequence.continuation))
        assert (row.tokens, row.reward, row.advantage) == (
            t.sequence.num_sampled,
            t.reward,
            t.advantage,
        )


def test_prompts_need_not_begin_with_0_nor_be_without_gaps(trajectories):
    members = [t for t in trajectories if t.prompt in (2, 5)]
    rows = sample_rows(0, members, task=Words(), num_prompts=3)
    assert {row.prompt for row in rows} == {2, 5}


def test_cut_off_is_what_did_not_end_by_itself(trajectories):
    tokens = ([5, STOP], [2, 3], [3, 2])
    members = [
        replace(t, sequence=Sequence.of_response([1], sampled, np.zeros(len(sampled)), version=0))
        for t, sampled in zip(trajectories, tokens, strict=False)
    ]
    rows = sample_rows(0, members, task=Words(), num_prompts=1)
    assert [row.cut_off for row in rows] == [False, False, True]


def test_steps_that_are_shown(config):
    every, never = (replace(config.observe, samples_every_steps=n) for n in (10, 0))
    assert [step for step in range(25) if samples_due(every, step)] == [0, 10, 20]
    assert not any(samples_due(never, step) for step in range(25))


def test_a_reward_of_several_functions_is_taken_apart(trajectories):
    parts = [
        {"math": 1.0, "format": 0.5},
        {"math": 0.0, "format": 0.0},
        {"math": 0.5, "format": 1.0},
    ]
    members = [
        replace(t, verdict=replace(t.verdict, components=p))
        for t, p in zip(trajectories[:3], parts, strict=True)
    ]
    assert [row.rewards for row in sample_rows(0, members, task=Words(), num_prompts=1)] == parts
    assert reward_parts(members) == {"reward/math": 0.5, "reward/format": 0.5}
    one = [replace(t, verdict=replace(t.verdict, components={"math": 1.0})) for t in trajectories]
    assert reward_parts(one) == {} == reward_parts(trajectories), "the reward itself says it"


def test_of_an_advantage_for_each_token_the_mean_is_shown(trajectories):
    first = replace(trajectories[0], advantages=np.array([0.5, -0.25, 0.5], np.float32))
    (row,) = sample_rows(0, [first], task=Words(), num_prompts=1)
    assert row.advantage == 0.25
