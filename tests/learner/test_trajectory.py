from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.trajectory import trajectories_digest


@pytest.fixture
def trajectories(groups):
    return [t for group in groups for t in group.trajectories]


def test_digest_does_not_see_the_order_of_arrival(trajectories):
    shuffled = [trajectories[i] for i in np.random.default_rng(0).permutation(len(trajectories))]
    assert trajectories_digest(shuffled) == trajectories_digest(trajectories)


def test_digest_sees_every_bit_that_was_sampled(trajectories):
    first, *others = trajectories

    def changed(name):
        array = getattr(first, name).copy()
        array.view(np.uint32)[-1] ^= 1
        return [replace(first, **{name: array}), *others]

    names = ("prompt_tokens", "response_tokens", "behaviour_logprobs", "policy_versions")
    variants = [trajectories, others, [replace(first, sample=99), *others], *map(changed, names)]
    assert len({trajectories_digest(variant) for variant in variants}) == len(variants)


def test_digest_knows_where_the_prompt_ends(trajectories):
    first = trajectories[0]
    moved = replace(
        first,
        prompt_tokens=np.append(first.prompt_tokens, first.response_tokens[:1]),
        response_tokens=first.response_tokens[1:],
    )
    assert trajectories_digest([first]) != trajectories_digest([moved])
