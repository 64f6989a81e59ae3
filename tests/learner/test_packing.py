import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlboost_jax.learner.episodes.trajectory import Trajectory
from rlboost_jax.learner.packing import (
    DoesNotFit,
    batch_shapes,
    fill,
    first_fit,
    pack,
    update_divisor,
)
from rlboost_jax.sequences.sequence import Sequence

ROW_TOKENS = 16


def trajectory(sample, prompt_length, response_length, advantage=1.5):
    """Tokens, log-probabilities and all are different from those of other samples."""
    start = 100 * (sample + 1)
    return Trajectory(
        prompt=sample,
        sample=sample,
        sequence=Sequence.of_response(
            np.arange(start, start + prompt_length),
            np.arange(start + 50, start + 50 + response_length),
            -np.arange(start, start + response_length, dtype=np.float32),
            version=0,
        ),
        advantage=advantage,
    )


lengths = st.lists(st.tuples(st.integers(1, 7), st.integers(1, 10)), min_size=1, max_size=25)


@given(
    lengths,
    st.integers(1, 4),
    st.sampled_from(["token_mean", "sequence_mean"]),
    st.integers(1, 4),
)
def test_every_trajectory_is_there_once_with_targets_beside_inputs(
    lengths, rows, aggregation, row_lengths
):
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    batches = pack(
        trajectories,
        rows=rows,
        row_tokens=ROW_TOKENS,
        loss_aggregation=aggregation,
        row_lengths=row_lengths,
    )
    found = {}
    for batch in batches:
        for row in range(len(batch.tokens)):
            assert (np.diff(batch.segments[row]) <= 1).all()
            for segment in range(1, batch.segments[row].max() + 1):
                here = (row, np.flatnonzero(batch.segments[row] == segment))
                assert (np.diff(here[1]) == 1).all()  # one unbroken stretch
                found[int(batch.tokens[here][0]) // 100 - 1] = (batch, here)
    assert sorted(found) == list(range(len(trajectories)))

    for t in trajectories:
        batch, here = found[t.sample]
        tokens = t.sequence.tokens
        np.testing.assert_array_equal(batch.tokens[here], tokens[:-1])
        np.testing.assert_array_equal(batch.targets[here], tokens[1:])
        np.testing.assert_array_equal(batch.positions[here], np.arange(len(tokens) - 1))
        mask = batch.response_mask[here]
        np.testing.assert_array_equal(batch.targets[here][mask], t.sequence.sampled_tokens)
        np.testing.assert_array_equal(batch.behaviour_logprobs[here][mask], t.sequence.logprobs)
        assert (batch.advantages[here][mask] == 1.5).all()
        assert (batch.weights[here][~mask] == 0).all()


@given(lengths)
def test_nothing_else_is_there(lengths):
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    batches = pack(trajectories, rows=2, row_tokens=ROW_TOKENS, loss_aggregation="token_mean")
    assert sum(b.response_mask.sum() for b in batches) == sum(r for _, r in lengths)
    assert sum((b.segments > 0).sum() for b in batches) == sum(p + r - 1 for p, r in lengths)
    for batch in batches:
        arrays = [part for part in vars(batch).values() if part is not None]
        assert {array.shape[:2] for array in arrays} == {(2, ROW_TOKENS)}
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


@given(lengths, st.integers(1, 3), st.integers(1, 4))
def test_rows_are_as_long_as_their_trajectories_need(lengths, rows, row_lengths):
    """Every batch has one of the shapes, and one trajectory at least for which the next shorter
    row would not do; only the last batch may have room for a later trajectory."""
    shapes = batch_shapes(rows, ROW_TOKENS, row_lengths)
    trajectories = [trajectory(i, p, r) for i, (p, r) in enumerate(lengths)]
    batches = pack(
        trajectories,
        rows=rows,
        row_tokens=ROW_TOKENS,
        loss_aggregation="token_mean",
        row_lengths=row_lengths,
    )
    next_tokens = dict(zip(shapes, [tokens for _, tokens in shapes[1:]] + [0], strict=True))
    for batch in batches:
        starts = (batch.positions == 0) & (batch.segments > 0)
        longest = max(int(batch.positions.max()) + 1, 1)
        assert starts.any() and longest > next_tokens[batch.tokens.shape]
    sizes = [batch.tokens.shape[1] for batch in batches]
    assert sizes == sorted(sizes, reverse=True)


def test_shapes_by_hand():
    """135 is halved to 67 and 33, and rows of these fit 2 and 4 times into the first batch."""
    assert batch_shapes(8, 135, 3) == ((8, 135), (16, 67), (32, 33))
    assert batch_shapes(8, 135, 1) == ((8, 135),)


def test_short_responses_do_not_pay_for_the_longest():
    """One of 16 positions and eight of 4, with rows of 16, 8 and 4: the second batch has rows
    of 4 only. In rows of 16, two batches of 32 would hold 32 x 16 scores each."""
    trajectories = [trajectory(0, 7, 10)] + [trajectory(i, 2, 3) for i in range(1, 13)]
    options = {"rows": 2, "row_tokens": ROW_TOKENS, "loss_aggregation": "token_mean"}
    shapes = [batch.tokens.shape for batch in pack(trajectories, **options, row_lengths=3)]
    assert shapes == [(2, 16), (8, 4)]
    shapes = [batch.tokens.shape for batch in pack(trajectories, **options)]
    assert shapes == [(2, 16), (2, 16)]


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


def test_a_sequence_without_a_sampled_token_is_refused():
    with pytest.raises(DoesNotFit, match="sample 0: no token was sampled; it needs at least one"):
        pack([trajectory(0, 3, 0)], rows=1, row_tokens=8, loss_aggregation="token_mean")
