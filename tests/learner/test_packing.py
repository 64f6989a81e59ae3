import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.learner.packing import DoesNotFit, fill, first_fit, pack, update_divisor
from rlboost_jax.learner.trajectory import Trajectory

ROW_TOKENS = 16


def trajectory(sample, prompt_length, response_length, advantage=1.5):
    """Tokens, log-probabilities and all are different from those of other samples."""
    start = 100 * (sample + 1)
    return Trajectory(
        prompt=sample,
        sample=sample,
        prompt_tokens=np.arange(start, start + prompt_length, dtype=np.int32),
        response_tokens=np.arange(start + 50, start + 50 + response_length, dtype=np.int32),
        behaviour_logprobs=-np.arange(start, start + response_length, dtype=np.float32),
        policy_versions=np.zeros(response_length, np.int32),
        reward=0.0,
        advantage=advantage,
    )


lengths = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 10)), min_size=1, max_size=25)


@given(lengths, st.integers(1, 4), st.sampled_from(["token_mean", "sequence_mean"]))
def test_every_trajectory_is_there_once_with_targets_beside_inputs(lengths, rows, aggregation):
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    batches = pack(trajectories, rows=rows, row_tokens=ROW_TOKENS, loss_aggregation=aggregation)
    found = {}
    for batch in batches:
        for row in range(rows):
            assert (np.diff(batch.segments[row]) <= 1).all()
            for segment in range(1, batch.segments[row].max() + 1):
                here = (row, np.flatnonzero(batch.segments[row] == segment))
                assert (np.diff(here[1]) == 1).all()  # one unbroken stretch
                found[int(batch.tokens[here][0]) // 100 - 1] = (batch, here)
    assert sorted(found) == list(range(len(trajectories)))

    for t in trajectories:
        batch, here = found[t.sample]
        tokens = np.concatenate([t.prompt_tokens, t.response_tokens])
        np.testing.assert_array_equal(batch.tokens[here], tokens[:-1])
        np.testing.assert_array_equal(batch.targets[here], tokens[1:])
        np.testing.assert_array_equal(batch.positions[here], np.arange(len(tokens) - 1))
        mask = batch.response_mask[here]
        np.testing.assert_array_equal(batch.targets[here][mask], t.response_tokens)
        np.testing.assert_array_equal(batch.behaviour_logprobs[here][mask], t.behaviour_logprobs)
        assert (batch.advantages[here][mask] == 1.5).all()
        assert (batch.weights[here][~mask] == 0).all()


@given(lengths)
def test_nothing_else_is_there(lengths):
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    batches = pack(trajectories, rows=2, row_tokens=ROW_TOKENS, loss_aggregation="token_mean")
    assert sum(b.response_mask.sum() for b in batches) == sum(r for _, r in lengths)
    assert sum((b.segments > 0).sum() for b in batches) == sum(p + r - 1 for p, r in lengths)
    for batch in batches:
        assert {part.shape for part in vars(batch).values()} == {(2, ROW_TOKENS)}
        assert (batch.tokens[batch.segments == 0] == 0).all()


@given(lengths)
def test_weights_add_up_to_the_divisor(lengths):
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    for aggregation in ("token_mean", "sequence_mean"):
        batches = pack(trajectories, rows=2, row_tokens=ROW_TOKENS, loss_aggregation=aggregation)
        np.testing.assert_allclose(
            sum(batch.weights.sum(dtype=np.float64) for batch in batches),
            update_divisor(trajectories, aggregation),
            rtol=1e-6,
        )


@given(st.lists(st.integers(1, 16), max_size=30), st.integers(1, 4))
def test_first_fit_leaves_out_only_what_has_no_room(lengths, rows):
    places = first_fit(lengths, rows=rows, capacity=16)
    room = [16] * rows
    for length, row in zip(lengths, places, strict=True):
        fitting = [r for r in range(rows) if room[r] >= length]
        assert row == (fitting[0] if fitting else None)
        if row is not None:
            room[row] -= length


def test_what_found_no_room_comes_back_in_order():
    trajectories = [trajectory(i, 5, 8) for i in range(5)]
    options = {"rows": 2, "row_tokens": ROW_TOKENS, "loss_aggregation": "token_mean"}
    _, left = fill(trajectories, **options)
    assert [t.sample for t in left] == [2, 3, 4]
    assert len(pack(trajectories, **options)) == 3


def test_a_row_holds_just_one_token_more_than_its_positions():
    options = {"rows": 1, "row_tokens": ROW_TOKENS, "loss_aggregation": "token_mean"}
    assert len(pack([trajectory(0, 7, 10)], **options)) == 1
    with pytest.raises(DoesNotFit, match=r"18 tokens need 17 positions, a row has 16; raise"):
        pack([trajectory(0, 8, 10)], **options)


@pytest.mark.parametrize(("prompt", "response"), [(0, 3), (3, 0)])
def test_an_empty_prompt_or_response_is_refused(prompt, response):
    with pytest.raises(DoesNotFit, match="both need at least one"):
        pack([trajectory(0, prompt, response)], rows=1, row_tokens=8, loss_aggregation="token_mean")
