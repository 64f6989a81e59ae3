"""Rooflines against numbers worked out by hand, and the table between its points."""

import pytest

from rlboost_jax.simulator.rates import EngineRates, StepTable, train_seconds
from rlboost_jax.simulator.row_clocks import BEYOND


def test_a_decode_step_by_hand(make):
    # Two H100 at half their bandwidth: 3.35e12 bytes/s. Weights of 14.77e9 x 2 bytes take
    # 8.818 ms, a token's keys and values (2 x 40 x 8 x 128 x 2 bytes = 163,840) 48.9 ns.
    rates = EngineRates(make(engine__memory_efficiency=0.5, engine__step_overhead_seconds=0.004))
    assert rates.step_seconds(1, 0) == pytest.approx(0.004 + 0.0088179, rel=1e-4)
    assert rates.step_seconds(100, 100 * 4000) == pytest.approx(
        0.004 + 0.0088179 + 0.0195632, rel=1e-4
    )


def test_a_large_batch_is_bound_by_compute(make):
    # 2 x 14.77e9 FLOPs a token at half of 2 x 989e12 FLOPs/s: 29.87 µs each.
    full = {"engine__memory_efficiency": 1.0, "engine__step_overhead_seconds": 0.0}
    rates = EngineRates(make(engine__compute_efficiency=0.5, **full))
    assert rates.step_seconds(4096, 4096) == pytest.approx(4096 * 29.868e-6, rel=1e-3)
    assert rates.prefill_seconds == pytest.approx(29.868e-6, rel=1e-3)


def test_tokens_of_a_step_with_drafts(make):
    rates = EngineRates(make(engine__most_drafts=7, engine__draft_acceptance=0.65))
    for drafts in range(8):  # a geometric sum
        assert rates.tokens_a_step(drafts) == pytest.approx((1 - 0.65 ** (drafts + 1)) / 0.35)
    assert EngineRates(make()).tokens_a_step(0) == 1.0


def test_acceptance_by_version_and_beyond_all_texts(make):
    rates = EngineRates(
        make(engine__most_drafts=7, engine__draft_acceptances=(0.2, 0.6), engine__draft_beyond=0.5)
    )
    assert [rates.tokens_a_step(1, version) for version in (0, 1, 9)] == [1.2, 1.6, 1.6]
    assert rates.tokens_a_step(1, 9, share=0.5) == pytest.approx(1.3)
    assert rates.shares[BEYOND] == 0.5


def test_a_step_with_drafts_takes_as_much_more_as_is_said(make):
    rates = EngineRates(make(engine__most_drafts=7, engine__draft_seconds=0.25)).slowed(2.0)
    assert rates.step_seconds(1, 0, drafts=7) - rates.step_seconds(1, 0) == pytest.approx(0.5)


def test_drafts_take_the_rows_that_sequences_leave(make):
    table = tuple((batch, context, 0.01) for batch in (1, 32) for context in (0, 4000))
    rates = EngineRates(
        make(engine__most_drafts=7, engine__token_rows=128, engine__table=table, engine__slots=32)
    )
    assert [rates.paces((0, n, 0, 0), 0)[0] for n in (1, 16, 32)] == [7, 7 * 16, 3 * 32]
    assert rates.paces((24, 8, 0, 0), 0)[0] == 7 * 8 and rates.paces((32, 0, 0, 0), 0)[0] == 0
    assert rates.paces((0, 64, 32, 32), 0)[0] == 0


def test_rollouts_without_a_text_draft_where_that_is_faster(make):
    """Eight of 16 rows are free: four rollouts with texts want two each, or all eight one each."""
    table = tuple((batch, context, 0.01) for batch in (1, 32) for context in (0, 4000))
    rows = {"engine__most_drafts": 7, "engine__token_rows": 16, "engine__table": table}
    for recent, expected in ((0.25, (8, 1.0, 1.75)), (1.0, (8, 1.5, 1.5))):
        rates = EngineRates(make(**rows, engine__draft_acceptance=0.5, engine__draft_recent=recent))
        drafts, paces = rates.paces((4, 4, 0, 0), 0, recent=True)
        assert (drafts, *paces[:2]) == expected
        assert rates.paces((4, 4, 0, 0), 0)[1][0] == 1.0, "nothing has ended here yet"


def test_drafts_whose_rows_cost_more_than_they_bring_are_left_out(make):
    # Beyond some 230 rows a step of 14B takes as long as its products.
    some = {"engine__most_drafts": 7, "engine__token_rows": 4096, "engine__draft_acceptance": 0.5}
    rates = EngineRates(make(**some, engine__step_overhead_seconds=0.0))
    assert rates.paces((0, 8, 0, 0), 0)[0] == 7 * 8
    assert rates.paces((0, 100, 0, 0), 0)[0] < 3 * 100
    assert rates.paces((0, 1000, 0, 0), 0)[0] == 0


def test_the_cache_takes_what_the_weights_leave(make):
    rates = EngineRates(make(engine__memory_fraction=0.85))
    assert rates.kv_tokens == int((160e9 * 0.85 - 29.54e9) / 163_840)


def test_training_by_hand(make):
    config = make(reserved__chips_per_node=8)
    # One sequence of 1,000 tokens: six passes of 2 x 14.77e9 x 1,000 for the weights and
    # 4 x 40 x 5,120 x 500,000 for attention, at 38 % of 8 x 989e12.
    flops = 6 * (2 * 14.77e9 * 1000 + 4 * 40 * 5120 * 500_000)
    assert train_seconds(config, [1000]) == pytest.approx(flops / (8 * 989e12 * 0.38))


def test_training_adds_up_and_halves_with_twice_the_nodes(make):
    one, two = make(), make(reserved__nodes=2)
    lengths = [100, 2000, 37]
    whole = train_seconds(one, lengths)
    assert whole == pytest.approx(sum(train_seconds(one, [n]) for n in lengths))
    assert train_seconds(two, lengths) == pytest.approx(whole / 2)


def test_training_by_known_seconds(make):
    """Each token counts, and each pair of a token with one before it in its own sequence."""
    config = make(trainer__token_seconds=1e-3, trainer__pair_seconds=1e-6)
    assert train_seconds(config, [100, 300]) == pytest.approx(0.4 + 1e-6 * (5_000 + 45_000))


ROWS = ((1, 100, 1.0), (1, 300, 3.0), (9, 100, 5.0), (9, 300, 11.0))


@pytest.mark.parametrize(
    ("batch", "context", "seconds"),
    [
        (1, 100, 1.0),
        (9, 300, 11.0),
        (5, 100, 3.0),
        (1, 200, 2.0),
        (5, 200, 5.0),
        (18, 300, 22.0),  # beyond the largest batch: in proportion
        (1, 50, 1.0),  # beyond the contexts: as at the edge
    ],
)
def test_a_table_is_linear_between_its_points(batch, context, seconds):
    assert StepTable(ROWS).seconds(batch, context) == pytest.approx(seconds)


def test_a_table_with_a_hole_is_no_grid():
    with pytest.raises(ValueError, match="3 rows for 2 batches and 2 contexts"):
        StepTable(ROWS[:3])


def test_a_table_takes_the_place_of_the_roofline(make):
    rates = EngineRates(make(engine__table=ROWS))
    assert rates.step_seconds(1, 300) == pytest.approx(3.0)


def test_slots_are_as_many_as_the_cache_is_set_aside_for(make):
    # A share of the longest response beside the prompt of 200 tokens, so that 20.5 fit.
    rates = EngineRates(make(workload__max_response_tokens=40_000))
    share = (rates.kv_tokens / 20.5 - 200) / 40_000
    few = make(workload__max_response_tokens=40_000, engine__reserve_ratio=share)
    assert rates.slots == 32
    assert EngineRates(few).slots == 20
