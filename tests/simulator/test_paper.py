"""The published evaluation: its files agree, and a small variant of it runs."""

import json

import pytest

from experiments.paper_evaluation import compare, evaluate
from experiments.simulated import outcome
from tests.simulator.conftest import make_config


def test_the_table_is_that_of_the_results():
    stored = json.loads((compare.FOLDER / "results.json").read_text())
    assert compare.compared(compare.FOLDER) == stored
    assert compare.table(stored) in (compare.FOLDER / "README.md").read_text()


def test_a_small_variant():
    config = make_config(num_steps=8)
    row = evaluate.ratios(config, "rlboost", (1,), seed=0)["1"]
    by_hand = (
        row["tokens_per_second"] / outcome("colocated_static", config, 0, seed=0).tokens_per_second
    )
    assert row["throughput_ratio"] == pytest.approx(by_hand)
    assert row["throughput_ratio"] > 1.0


def test_what_the_baseline_does(monkeypatch):
    monkeypatch.setattr(evaluate, "config_of", lambda model: make_config())
    found = evaluate.colocated(seed=0)["14b"]
    assert 0 < found["rollout_share"] < 1
    assert 1.0 < found["twice"] <= 2.2  # more room for the cache, too


def test_rows_are_means_over_seeds(tmp_path):
    """And what was not simulated has none."""
    folder = tmp_path / "paper_evaluation"
    (folder / "results").mkdir(parents=True)
    (tmp_path / "static_fleet").mkdir()
    segments = {
        "0": {"means": {"throughput_ratio": 1.5}},
        "1": {"means": {"throughput_ratio": 1.7}},
    }
    (folder / "results" / "segments_8b.json").write_text(json.dumps(segments))
    static = {
        "14b": {
            "0": {"throughput_ratio": {"mean": 1.05, "half_width": 0.1}},
            "1": {"throughput_ratio": {"mean": 1.26, "half_width": 0.2}},
        }
    }
    (tmp_path / "static_fleet" / "results.json").write_text(json.dumps(static))
    rows = compare.compared(folder)
    assert [row["name"] for row in rows] == [
        "14B, 1 instance: throughput",
        "14B, 1 instance over none: throughput",
        "8B, segments: throughput",
    ]
    assert [row["simulated"] for row in rows] == pytest.approx([1.26, 1.2, 1.6])
    assert rows[2]["half_width"] == pytest.approx(12.706 * 0.1)  # Student's t of two
    line = "| 8B, segments: throughput | 1.66 | 1.60 | 1.27 | 0.96 |"
    assert line in compare.table(rows)
