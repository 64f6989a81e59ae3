"""The learner's benchmark: each way is one of the same step, and is timed."""

from dataclasses import replace

import pytest

from benchmarks import learner

TINY = replace(
    learner.SIZES["4M"],
    vocab_size=256,
    embed_dim=32,
    num_layers=1,
    num_query_heads=1,
    num_key_heads=1,
    hidden_dim=64,
)


@pytest.mark.optimized(False)
def test_each_way_is_timed_over_the_tokens_of_the_trajectories():
    ways = [way for way in learner.WAYS if way.name in ("packed rows, all logits", "packed rows")]
    results, facts = learner.measure(TINY, 3, rounds=1, ways=ways)
    assert [result.way for result in results] == [way.name for way in ways]
    trajectories = learner.draw(TINY, 3)
    tokens = sum(len(t.sequence.tokens) - 1 for t in trajectories)
    for result in results:
        assert result.filled == pytest.approx(tokens / (learner.ROWS * learner.LONGEST))
        assert result.tokens_per_second > 0
    assert results[0].gain == 1
    assert "ratio 1.0" in facts
