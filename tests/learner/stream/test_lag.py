"""Which version samples which batch, against what the setting promises: max(0, b - k)."""

import dataclasses

import pytest

from rlboost_jax.learner.stream.lag import Lag, lag_of


def lag(versions, num_batches=6):
    return Lag(versions=versions, num_batches=num_batches)


@pytest.mark.parametrize("k", range(5))
def test_every_batch_is_begun_once_and_from_the_version_that_is_due(k):
    """As a trainer asks for it: what is open while a batch is trained on, newest version first."""
    run, begun = lag(k), {}
    for oldest in range(6):
        for batch in run.open_at(oldest):
            if batch not in begun:
                begun[batch] = run.version_of(batch)
                assert begun[batch] <= oldest, "it is published"
        assert len([batch for batch in begun if batch >= oldest]) <= k + 1
    assert begun == {batch: max(0, batch - k) for batch in range(6)}


@pytest.mark.parametrize("k", range(5))
def test_what_is_kept_is_what_open_batches_are_sampled_from(k):
    """But for the newest version, which is the learner's own."""
    run = lag(k, num_batches=100)
    for oldest in range(8):
        needed = {max(0, batch - k) for batch in range(oldest, oldest + k + 1)}
        assert {*run.kept_at(oldest), oldest} == needed | {oldest}
        assert len(run.kept_at(oldest)) <= k


@pytest.mark.parametrize("k", range(8))
def test_a_version_that_samples_nothing_is_known_beforehand(k):
    sampled = {max(0, batch - k) for batch in range(6)}
    assert {v for v in range(7) if lag(k).samples(v)} == sampled


def test_each_version_is_measured_beside_the_first_batch_that_it_samples():
    assert [lag(0).measured_by(b) for b in range(4)] == [0, 1, 2, 3]
    assert [lag(2).measured_by(b) for b in range(6)] == [0, None, None, 1, 2, 3]


def test_with_a_lag_a_batch_has_all_prompts_to_itself_that_it_may_try(config):
    def stride(**algorithm):
        run = dataclasses.replace(
            config,
            algorithm=dataclasses.replace(config.algorithm, **algorithm),
            learner=dataclasses.replace(config.learner, prompts_per_step=6),
        )
        return lag_of(run).stride

    assert stride(lag=0) == stride(lag=0, dynamic_sampling=True) == 0
    assert stride(lag=1) == 6
    assert stride(lag=1, dynamic_sampling=True, dynamic_sampling_factor=2.5) == 15
