import math
from dataclasses import replace

import numpy as np
import pytest

from rlboost_jax.learner import doubts
from rlboost_jax.learner.doubts import Gaps, message_of, tolerated_gaps
from rlboost_jax.learner.stream.step_stream import Doubt
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
    bounds = getattr(doubts, expected), getattr(doubts, f"{expected}_CHOICE")
    assert tolerated_gaps(run, platform) == bounds


@pytest.mark.parametrize("value", [1e-6, 0.3, math.inf])
def test_a_setting_goes_before(config, value):
    run = replace(config, learner=replace(config.learner, tolerated_gap=value))
    assert tolerated_gaps(run, "cpu") == (value, doubts.EXACT_CHOICE)
    run = replace(config, learner=replace(config.learner, tolerated_choice_gap=0.5))
    assert tolerated_gaps(run, "cpu") == (doubts.EXACT, 0.5)


def test_what_is_no_number_is_within_no_bound():
    bound = Gaps(1.0, 1.0)
    assert bound.within(bound) and not Gaps(2.0, 0.0).within(bound)
    assert not Gaps(0.0, 1.1).within(bound) and not Gaps(0.0, math.nan).within(bound)
    assert not Gaps(0.0, 0.0).largest(Gaps(math.nan, 0.0)).within(bound)
    assert Gaps(1.0, 0.0).largest(Gaps(0.0, 2.0)) == (1.0, 2.0)


def test_a_report_names_each_sequence_as_it_was_delivered():
    found = [
        Doubt(prompt=0, sample=3, attempt=1, checksum=2**32 - 1, position=5, gap=2.5),
        Doubt(prompt=1, sample=4, sequence=2, attempt=0, checksum=7, position=0, gap=9.0),
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
