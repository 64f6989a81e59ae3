import math
from dataclasses import replace

import pytest

from rlboost_jax.learner.doubts import EXACT, ROUNDED, SINGLE, tolerated_gap


@pytest.mark.parametrize(
    ("weights", "cache", "platform", "expected"),
    [
        ("float32", "float32", "cpu", EXACT),
        ("float32", "float32", "gpu", SINGLE),
        ("float32", "float32", "tpu", SINGLE),
        ("bfloat16", "float32", "cpu", ROUNDED),
        ("float32", "bfloat16", "cpu", ROUNDED),
        ("float32", "float8_e4m3fn", "gpu", ROUNDED),
    ],
)
def test_what_rounds_is_tolerated(config, weights, cache, platform, expected):
    run = replace(
        config,
        weights=replace(config.weights, rollout_dtype=weights),
        engine=replace(config.engine, kv_dtype=cache),
    )
    assert tolerated_gap(run, platform) == expected


@pytest.mark.parametrize("value", [1e-6, 0.3, math.inf])
def test_a_setting_goes_before(config, value):
    run = replace(config, learner=replace(config.learner, tolerated_gap=value))
    assert tolerated_gap(run, "cpu") == value
