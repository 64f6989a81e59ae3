from pathlib import Path
from typing import Any

import pytest

from rlboost_jax.observe.cost import comparison
from rlboost_jax.observe.metrics import KEYS
from rlboost_jax.observe.summary import (
    Summary,
    duration,
    headline,
    read_summary,
    summarize,
    write_summary,
)


def rows(*values: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict.fromkeys(KEYS) | {"step": step, **row} for step, row in enumerate(values)]


def test_the_same_work_is_compared_by_hand() -> None:
    """300 tokens in 2 s of windows is 150 a second; 1200 delivered and 150 measured take 9 s,
    training and publishing 3 s. The run has paid 2.5 $, 2 $ of that before and between steps."""
    measured = {"seeding_window_seconds": 1.0, "tokens_delivered": 600, "publish_seconds": 0.5}
    table = rows(
        {**measured, "tokens_reserved": 100, "train_seconds": 1.0, "tokens_measured": 150}
        | {"cost_dollars": 2.2, "cost_between_dollars": 1.9},
        {**measured, "tokens_reserved": 200, "train_seconds": 1.0}
        | {"cost_dollars": 0.3, "cost_between_dollars": 0.1},
    )
    found = comparison(table, reserved_price_per_hour=36.0)
    assert found is not None
    assert found.run == pytest.approx(0.5)
    assert found.reserved_only == pytest.approx((9 + 3) * 36 / 3600)


def test_a_fleet_of_none_costs_what_the_reserved_devices_cost() -> None:
    """Like with like: a run on the reserved devices alone is compared with itself, however long
    it took to start."""
    window, train, publish, between = 4.0, 2.0, 0.25, 30.0
    cost = (window + train + publish) * 36.0 / 3600
    row = {
        "seeding_window_seconds": window,
        "tokens_reserved": 1000,
        "tokens_delivered": 900,
        "tokens_measured": 100,
        "train_seconds": train,
        "publish_seconds": publish,
        "cost_between_dollars": between * 36.0 / 3600,
        "cost_dollars": cost + between * 36.0 / 3600,
    }
    found = comparison(rows(row, row, row), reserved_price_per_hour=36.0)
    assert found is not None
    assert found.run == pytest.approx(found.reserved_only) == pytest.approx(3 * cost)


def test_without_reserved_tokens_there_is_no_estimate() -> None:
    row = {"seeding_window_seconds": 0.0, "tokens_delivered": 9, "cost_between_dollars": 0.0}
    assert comparison(rows({"tokens_reserved": 0, **row}), reserved_price_per_hour=36.0) is None
    assert comparison([], reserved_price_per_hour=36.0) is None


def test_rows_of_before_are_not_compared() -> None:
    row = {"seeding_window_seconds": 1.0, "tokens_delivered": 9, "tokens_reserved": 9}
    assert comparison(rows(row), reserved_price_per_hour=36.0) is None


def test_first_and_last_are_of_what_was_measured() -> None:
    table = rows(
        {"accuracy": None, "reward_mean": 0.2, "step_seconds": 2.0, "max_logprob_gap": 1e-7},
        {"accuracy": 0.3, "reward_mean": 0.4, "step_seconds": 3.0, "tokens_lost": 4},
        {"accuracy": 0.9, "reward_mean": None, "instances_lost": 2, "tokens_lost": 5},
    )
    summary = summarize(table, reserved_price_per_hour=1.0)
    assert (summary.first_accuracy, summary.last_accuracy) == (0.3, 0.9)
    assert (summary.first_reward, summary.last_reward) == (0.2, 0.4)
    assert (summary.seconds, summary.tokens_lost, summary.instances_lost) == (5.0, 9, 2)
    assert summary.max_logprob_gap == 1e-7


def test_episodes_are_summed_up_and_rows_of_before_know_none() -> None:
    plain = summarize(rows({"step_seconds": 1.0}), reserved_price_per_hour=1.0)
    assert (plain.turns_mean, plain.tool_calls, plain.episodes_left_out) == (None, 0, 0)
    several = rows(
        {"turns_mean": 2.0, "tool_calls": 5, "tool_failures": 1, "episodes_left_out": 0},
        {"turns_mean": 3.0, "tool_calls": 7, "tool_failures": 0, "episodes_left_out": 2},
    )
    older = [{key: row[key] for key in row if "tool" not in key} for row in several[:1]]
    found = summarize([*older, *several], reserved_price_per_hour=1.0)
    assert found.turns_mean == pytest.approx(7 / 3)
    assert (found.tool_calls, found.tool_failures, found.episodes_left_out) == (12, 1, 2)


def summary(**changes: Any) -> Summary:
    return Summary(
        **{
            "steps": 60,
            "seconds": 72.0,
            "first_accuracy": 0.11,
            "last_accuracy": 0.94,
            "first_reward": 0.2,
            "last_reward": 0.9,
            "instances_joined": 22,
            "instances_lost": 21,
            "requests_migrated": 0,
            "tokens_generated": 0,
            "tokens_lost": 0,
            "max_logprob_gap": None,
            "cost_dollars": 0.0,
            "reserved_only_dollars": None,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {},
            "60 updates in 1 min 12 s took held-out accuracy from 0.11 to 0.94, "
            "while 21 servers were lost and 22 joined.",
        ),
        (
            {"steps": 1, "instances_lost": 1, "instances_joined": 0},
            "1 update in 1 min 12 s took held-out accuracy from 0.11 to 0.94, "
            "while 1 server was lost and 0 joined.",
        ),
        (
            {"first_accuracy": None, "instances_lost": 0, "instances_joined": 0},
            "60 updates in 1 min 12 s took the mean reward from 0.20 to 0.90, "
            "without preemptible servers.",
        ),
        (
            {"instances_lost": 9, "instances_left": 2},
            "60 updates in 1 min 12 s took held-out accuracy from 0.11 to 0.94, "
            "while 9 servers were lost (2 with notice) and 22 joined.",
        ),
        (
            {"instances_lost": 0, "instances_joined": 3},
            "60 updates in 1 min 12 s took held-out accuracy from 0.11 to 0.94, "
            "while no server was lost.",
        ),
        ({"steps": 0, "last_accuracy": None}, "No step is finished yet."),
        ({"steps": 0}, "No step is finished; held-out accuracy is 0.94."),
    ],
)
def test_the_run_in_a_sentence(changes: dict[str, Any], sentence: str) -> None:
    assert headline(summary(**changes)) == sentence


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3599.6, "1 h 0 min"),
        (12_000, "3 h 20 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("left", [b"", b'{"steps": 3, "sec', b"[]", b'{"steps": 3}', b"\xff"])
def test_a_damaged_summary_is_none(tmp_path: Path, left: bytes) -> None:
    (tmp_path / "summary.json").write_bytes(left)
    assert read_summary(tmp_path) is None
    summary = summarize(rows({"accuracy": 0.5, "reward_mean": 0.1}), reserved_price_per_hour=1.0)
    write_summary(tmp_path, summary)
    assert read_summary(tmp_path) == summary
