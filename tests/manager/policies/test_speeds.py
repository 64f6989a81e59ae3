"""Fits against engines whose coefficients are known."""

import random

import numpy as np
import pytest

from rlboost_jax.manager.policies.speeds import SHRINK_SECONDS, BusySpan, Rates, Speeds, fit

KIND = "kind", False
TRUE = Rates(step=0.015, row=2e-5, context=3e-8, prefill=2.5e-5)


def work(rng: random.Random, rates: Rates, since: float) -> tuple[BusySpan, float]:
    """What an engine does in some steps with some rollouts, and until when."""
    span, now = BusySpan(since), since
    rows = [rng.randrange(100, 9000) for _ in range(rng.randrange(1, 90))]
    new = [rng.random() < 0.3 for _ in rows]
    steps = rng.randrange(20, 200)
    for number, (length, first) in enumerate(zip(rows, new, strict=True)):
        span.sampled(number, length, steps // 2, first=first)
        span.sampled(number, length + steps // 2, steps - steps // 2, first=False)
        now += rates.prefill * length * first
    for step in range(steps):
        now += rates.step_seconds(len(rows), sum(rows) + step * len(rows))
    return span, now


def measured(rates: Rates, name: str, speeds: Speeds, *, seed: int) -> None:
    rng, now = random.Random(seed), 0.0
    for _ in range(20):
        span, now = work(rng, rates, now)
        speeds.add(KIND, name, span, now)


def test_an_engine_is_found_from_what_it_tells() -> None:
    speeds = Speeds()
    measured(TRUE, "a", speeds, seed=0)
    assert speeds.rates(KIND) is None  # until the step is over
    speeds.end_step(["a"])
    found = speeds.rates(KIND)
    assert found is not None
    for name in ("step", "row", "context", "prefill"):
        assert getattr(found, name) == pytest.approx(getattr(TRUE, name), rel=1e-3)
    assert speeds.factor("a") == 1.0


def test_what_the_messages_look_like_does_not_matter() -> None:
    whole, parts = BusySpan(0.0), BusySpan(0.0)
    whole.sampled(1, 100, 10, first=True)
    for before in range(100, 110):
        parts.sampled(1, before, 1, first=before == 100)
    assert whole.sums() == parts.sums() == (10.0, 10.0, sum(range(100, 110)), 100.0)


def test_with_drafts_a_mean_rollouts_tokens_count_as_steps() -> None:
    """One samples three tokens while another samples one; alone, and two at a time, it is slower.

    Steps take 10 ms. Three rollouts in slots sample 2 tokens a step on average, one alone 4: the
    seconds of a mean token are 5 ms and 2.5 ms, which step + row times 3 and times 1 both are.
    """
    speeds, now = Speeds(), 0.0
    for steps in range(100, 110):
        for rows, tokens in (((3, 2, 1), 0.01), ((4,), 0.01)):
            span = BusySpan(now)
            for number, each in enumerate(rows):
                span.sampled(number, 0, steps * each, first=False)
            span.held(float(len(rows)))
            now += steps * tokens
            speeds.add(KIND, "a", span, now)
    speeds.end_step(["a"])
    found = speeds.rates(KIND)
    assert found is not None
    assert found.step_seconds(3, 0) == pytest.approx(0.005, rel=1e-3)
    assert found.step_seconds(1, 0) == pytest.approx(0.0025, rel=1e-3)


def test_an_instance_slower_than_its_kind_is_found() -> None:
    speeds = Speeds()
    measured(TRUE, "a", speeds, seed=0)
    speeds.end_step(["a", "b"])
    measured(TRUE.times(2.0), "b", speeds, seed=1)
    measured(TRUE, "a", speeds, seed=2)
    assert 1.8 < speeds.factor("b") <= 2.0  # a little of its kind's pace is still believed
    assert speeds.factor("a") == pytest.approx(1.0, abs=1e-3)
    speeds.end_step(["a"])
    assert speeds.factor("b") == 1.0  # it is gone


def test_no_coefficient_is_negative() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        rows = rng.random((30, 4)) * [1, 100, 1e5, 1e4]
        seconds = rows @ rng.normal(size=4) + 5
        table = np.column_stack([rows, seconds])
        found = fit(table.T @ table)
        assert min(found.step, found.row, found.context, found.prefill) >= 0


def test_a_decode_step_takes_time() -> None:
    """Even where prefill alone explains every second that was measured."""
    rows = np.array([[2.0, 4.0, 12.0, 1000.0], [1.0, 2.0, 5.0, 3000.0], [2.0, 2.0, 4.0, 9000.0]])
    table = np.column_stack([rows, 0.002 * rows[:, 3]])
    found = fit(table.T @ table)
    assert found.step_seconds(1.0, 1.0) > 0
    assert found.prefill == pytest.approx(0.002, rel=0.01)


def test_a_kind_is_believed_after_some_spans() -> None:
    speeds, span = Speeds(), BusySpan(0.0)
    span.sampled(1, 10, 5, first=True)
    speeds.add(KIND, "a", span, 1.0)
    speeds.add(KIND, "a", BusySpan(1.0), 2.0)  # without a token
    speeds.end_step(["a"])
    assert speeds.rates(KIND) is None
    assert SHRINK_SECONDS > 0 and speeds.factor("unknown") == 1.0
