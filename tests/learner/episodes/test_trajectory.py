import hashlib
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner.episodes.trajectory import trajectories_digest
from rlboost_jax.sequences.sequence import Sequence


@pytest.fixture
def trajectories(groups):
    return [t for group in groups for t in group.trajectories]


def test_digest_does_not_see_the_order_of_arrival(trajectories):
    shuffled = [trajectories[i] for i in np.random.default_rng(0).permutation(len(trajectories))]
    assert trajectories_digest(shuffled) == trajectories_digest(trajectories)


def test_digest_sees_every_bit_that_was_sampled(trajectories):
    first, *others = trajectories

    def changed(name):
        array = getattr(first.sequence, name).copy()
        array.view(np.uint32)[-1] ^= 1
        return with_sequence(first, replace(first.sequence, **{name: array}))

    def with_sequence(t, sequence):
        return [replace(t, sequence=sequence), *others]

    prompt = first.sequence.tokens.copy()
    prompt[0] ^= 1
    variants = [
        trajectories,
        others,
        [replace(first, sample=99), *others],
        changed("tokens"),
        changed("logprobs"),
        with_sequence(first, replace(first.sequence, tokens=prompt)),
        with_sequence(first, replace(first.sequence, versions=((2, first.sequence.num_sampled),))),
    ]
    assert len({trajectories_digest(variant) for variant in variants}) == len(variants)


def test_digest_knows_where_the_prompt_ends(trajectories):
    first = next(t for t in trajectories if t.sequence.num_sampled > 1)
    whole, (prompt, sampled) = first.sequence, first.sequence.runs
    moved = replace(
        whole,
        runs=(prompt + 1, sampled - 1),
        logprobs=whole.logprobs[1:],
        versions=((3, sampled - 1),),
    )
    assert trajectories_digest([first]) != trajectories_digest([replace(first, sequence=moved)])


def test_digest_knows_which_tokens_were_given(trajectories):
    """The same tokens, log-probabilities and versions; only whose they are differs."""
    logprobs = np.array([-1.0, -2.0, -3.0], np.float32)

    def digest(*runs):
        sequence = Sequence(
            tokens=np.arange(7, dtype=np.int32), runs=runs, logprobs=logprobs, versions=((3, 3),)
        )
        return trajectories_digest([replace(trajectories[0], sequence=sequence)])

    ways = [(1, 1, 2, 2, 1), (1, 2, 2, 1, 1), (1, 1, 1, 1, 2, 1), (1, 3, 3), (1, 1, 3, 2)]
    assert len({digest(*runs) for runs in ways}) == len(ways)


def test_digest_of_prompt_and_response_by_hand(trajectories):
    """As runs of all versions have written it: resumed and compared runs depend on it."""
    expected = hashlib.sha256()
    for t in trajectories:
        expected.update(f"{t.prompt} {t.sample}\n".encode())
        prompt, response = np.split(t.sequence.tokens, [len(t.sequence.prompt)])
        versions = np.full(len(response), 3, "<i4")
        for array in (prompt, response, t.sequence.logprobs, versions):
            expected.update(f"{array.nbytes}\n".encode())
            expected.update(array.tobytes())
    assert trajectories_digest(trajectories) == expected.hexdigest()
