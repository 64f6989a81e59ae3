import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner import tolerated_gaps as doubts
from rlboost_jax.learner.stream.step_stream import DoubtedResponse
from rlboost_jax.learner.tolerated_gaps import NO_GAPS, Gaps, message_of, tolerated_gaps
from rlboost_jax.sequences.identities import Batch


@pytest.mark.parametrize(
    ("weights", "cache", "platform", "expected"),
    [
        ("float32", "float32", "cpu", "EXACT"),
        ("float32", "float32", "gpu", "SINGLE"),
        ("float32", "float32", "tpu", "SINGLE"),
        ("bfloat16", "float32", "cpu", "ROUNDED"),
        ("float32", "bfloat16", "cpu", "ROUNDED"),
        ("float32", "float8_e4m3fn", "gpu", "ROUNDED"),
    ],
)
def test_what_rounds_is_tolerated(config, weights, cache, platform, expected):
    run = replace(
        config,
        weights=replace(config.weights, rollout_dtype=weights),
        engine=replace(config.engine, kv_dtype=cache),
    )
    choice = getattr(doubts, f"{expected}_CHOICE")
    bounds = Gaps(getattr(doubts, expected), choice, choice / 64)
    assert tolerated_gaps(run, platform) == bounds


@pytest.mark.parametrize("value", [1e-6, 0.3, math.inf])
def test_a_setting_goes_before(config, value):
    run = replace(config, learner=replace(config.learner, tolerated_gap=value))
    choice = doubts.EXACT_CHOICE
    assert tolerated_gaps(run, "cpu") == Gaps(value, choice, choice / 64)
    for choice, mean in ((0.5, 0.5 / 64), (1.0, 1.0)):  # 1 lets any choice pass
        run = replace(config, learner=replace(config.learner, tolerated_choice_gap=choice))
        assert tolerated_gaps(run, "cpu") == Gaps(doubts.EXACT, choice, mean)


def test_what_is_no_number_is_within_no_bound():
    bound = Gaps(1.0, 1.0, 1.0)
    assert bound.within(bound)
    for place, value in itertools.product(range(3), (1.1, math.nan)):
        gaps = Gaps(*(value if each == place else 0.0 for each in range(3)))
        assert not gaps.within(bound) and not NO_GAPS.joined(gaps).within(bound)
    assert Gaps(1.0, 0.0, 3.0, 2).joined(Gaps(0.0, 2.0, 1.0, 3)) == Gaps(1.0, 2.0, 3.0, 5)


def test_a_report_names_each_sequence_as_it_was_delivered():
    found = [
        DoubtedResponse(prompt=0, sample=3, attempt=1, checksum=2**32 - 1, position=5, gap=2.5),
        DoubtedResponse(prompt=1, sample=4, sequence=2, attempt=0, checksum=7, position=0, gap=9.0),
    ]
    said = message_of(Batch(8), found)
    rows = (said.samples, said.sequences, said.attempts, said.checksums, said.positions)
    assert [np.frombuffer(row, "<u4").tolist() for row in rows] == [
        [3, 4],
        [0, 2],
        [1, 0],
        [2**32 - 1, 7],
        [5, 0],
    ]
    assert (said.batch, said.gap) == (8, 9.0)
    assert message_of(Batch(8), found[:1]).sequences == b""
